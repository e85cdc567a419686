"""Jobs of a coordinator on one machine beside other systems."""
