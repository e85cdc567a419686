"use strict";
let ready;
// Unpack plotly once, when the first picture is to be enlarged.
function plotly() {
  ready ??= (async () => {
    const packed = Uint8Array.from(atob(document.getElementById("plotly").textContent), c => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(stream).text();
    document.head.append(script);
  })();
  return ready;
}
async function zoom(picture, button) {
  button.disabled = true;
  try {
    await plotly();
    const { data, layout } = JSON.parse(picture.querySelector("script").textContent);
    const style = getComputedStyle(document.body), root = getComputedStyle(document.documentElement);
    const axis = { gridcolor: root.getPropertyValue("--line"), zerolinecolor: root.getPropertyValue("--line") };
    for (const name of ["xaxis", "yaxis"]) layout[name] = { ...layout[name], ...axis };
    const colours = { paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { ...layout.font, color: style.color } };
    const area = document.createElement("div");
    picture.classList.add("wide");
    picture.querySelectorAll(":scope > svg, .axis, .legend, .scale, figcaption").forEach(part => part.remove());
    picture.prepend(area);
    button.remove();
    const options = { responsive: true, displaylogo: false, toImageButtonOptions: { format: "svg" } };
    await Plotly.newPlot(area, data, { ...layout, ...colours }, options);
  } catch (error) {
    button.textContent = `cannot be enlarged: ${error.message}`;
  }
}
for (const picture of document.querySelectorAll("figure.picture")) {
  const button = document.createElement("button");
  button.textContent = "enlarge";
  button.onclick = () => zoom(picture, button);
  picture.prepend(button);
}
