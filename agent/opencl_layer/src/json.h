/* Just enough JSON for the answers to requests. */
#pragma once
#include <stdio.h>

#include <string>
#include <vector>

namespace tenbin {

class Json {
    std::string out = "{";

    Json &put(const char *name, const std::string &value) {
        out += (out.size() > 1 ? ", \"" : "\"") + std::string(name) + "\": " + value;
        return *this;
    }

  public:
    static std::string quoted(const std::string &text) {
        std::string result = "\"";
        for (char c : text) {
            char escape[8];
            auto code = static_cast<unsigned char>(c);
            if (c == '"' || c == '\\' || code < 0x20 || code >= 0x7f) {
                snprintf(escape, sizeof(escape), "\\u%04x", code);
                result += escape;
            } else {
                result += c;
            }
        }
        return result + "\"";
    }
    Json &text(const char *name, const std::string &value) { return put(name, quoted(value)); }
    Json &boolean(const char *name, bool value) { return put(name, value ? "true" : "false"); }
    Json &number(const char *name, double value) {
        char digits[40];
        snprintf(digits, sizeof(digits), "%.17g", value);
        return put(name, digits);
    }
    Json &seconds(const char *name, double value) { /* below 0: not known */
        return value < 0 ? put(name, "null") : number(name, value);
    }
    Json &list(const char *name, const std::vector<std::string> &values) {
        std::string all;
        for (auto &value : values) all += (all.empty() ? "" : ", ") + value;
        return put(name, "[" + all + "]");
    }
    Json &object(const char *name, const std::string &value) { return put(name, value); }
    std::string end() { return out + "}"; }
};

} // namespace tenbin
