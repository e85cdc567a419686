/* Variables that a program keeps in device memory (OpenCL C 2.0 and later): no call reads or writes them.
 *
 * Drivers do not tell of them reliably (PoCL 3.1 gives a size of 0), so the source is searched. What it is not sure
 * of counts as a variable: the program runs on, and is not moved. */
#include <ctype.h>

#include "recipes.h"

namespace tenbin {

namespace {

bool has_word(const std::string &text, const std::string &word) {
    auto is_part = [&](size_t i) {
        return i < text.size() && (isalnum(static_cast<unsigned char>(text[i])) || text[i] == '_');
    };
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1))
        if (!(at && is_part(at - 1)) && !is_part(at + word.size())) return true;
    return false;
}

/* Without comments, lines of the preprocessor, and the contents of strings. */
std::string bare(const std::string &text) {
    std::string out;
    for (size_t i = 0; i < text.size();) {
        bool line_begins = out.find_last_not_of(" \t") == std::string::npos ||
                           out[out.find_last_not_of(" \t")] == '\n';
        if (text.compare(i, 2, "//") == 0 || (text[i] == '#' && line_begins)) {
            while (i < text.size() && text[i] != '\n') i += text[i] == '\\' ? 2 : 1;
        } else if (text.compare(i, 2, "/*") == 0) {
            size_t end = text.find("*/", i + 2);
            i = end == std::string::npos ? text.size() : end + 2;
            out += ' ';
        } else if (text[i] == '"' || text[i] == '\'') {
            char quote = text[i++];
            while (i < text.size() && text[i] != quote) i += text[i] == '\\' ? 2 : 1;
            i++;
            out += '0';
        } else {
            out += text[i++];
        }
    }
    return out;
}

/* A declaration outside of all functions, its braces empty: "float x[3] = {}", "struct S {}". */
bool is_variable(const std::string &statement) {
    if (statement.find_first_not_of(" \t\r\n") == std::string::npos || has_word(statement, "typedef") ||
        has_word(statement, "constant") || has_word(statement, "__constant"))
        return false;
    std::string head = statement.substr(0, statement.find('='));
    bool has_pointer = head.find('*') != std::string::npos; /* which may change where what it points to may not */
    if (has_word(head, "sampler_t") || (has_word(head, "const") && !has_pointer)) return false;
    if (head.size() == statement.size() && head.find('(') != std::string::npos)
        return head.find("attribute") != std::string::npos; /* else a prototype */
    size_t body = head.find("{}");
    if (body != std::string::npos) return head.find_first_not_of(" \t\r\n", body + 2) != std::string::npos;
    bool is_type = has_word(head, "struct") || has_word(head, "union") || has_word(head, "enum");
    size_t words = 0;
    auto is_space = [&](size_t i) { return isspace(static_cast<unsigned char>(head[i])) != 0; };
    for (size_t i = 0; i < head.size(); i++) words += !is_space(i) && (!i || is_space(i - 1));
    return !is_type || words > 2; /* "struct S;" announces a type */
}

bool declares_variable(const std::string &text) {
    std::string statement;
    int braces = 0, parentheses = 0;
    for (char c : bare(text)) {
        parentheses += (c == '(') - (c == ')');
        braces += (c == '{') - (c == '}');
        if (braces && c != '{') continue;
        if (c == '{' && braces > 1) continue;
        if (c == ';' && !parentheses) {
            if (is_variable(statement)) return true;
            statement.clear();
        } else if (c == '}' && statement.find('(') != std::string::npos && statement.find('=') == std::string::npos) {
            statement.clear(); /* the end of a function */
        } else {
            statement += c;
        }
    }
    return false;
}

} // namespace

bool may_have_variables(const Recipe &recipe) {
    for (auto &input : recipe.inputs)
        if (may_have_variables(*input)) return true;
    size_t standard = recipe.options.find("-cl-std=");
    if (standard == std::string::npos || recipe.options.compare(standard + 8, 3, "CL1") == 0) return false;
    return has_word(recipe.text, "include") || has_word(bare(recipe.text), "static") || declares_variable(recipe.text);
}

} // namespace tenbin
