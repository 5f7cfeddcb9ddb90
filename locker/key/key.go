package key

import "strings"

// A Key is the text of a template, such as "order:{param.id}". An untyped constant is one; [Join] and [Part], and the
// functions of the adapters, make one without spelling it.
type Key string

// Join puts a ':' between parts. What is no part is literal text.
func Join(parts ...Key) Key {
	var b strings.Builder
	for i, p := range parts {
		if i > 0 {
			b.WriteByte(':')
		}
		b.WriteString(string(p))
	}
	return Key(b.String())
}

// Part is the part of a request that source calls name, "" for a source with one value only.
func Part(source, name string) Key {
	if name == "" {
		return Key("{" + source + "}")
	}
	return Key("{" + source + "." + quote.Replace(name) + "}")
}

// HMAC is part, replaced by its HMAC. Anything but a part is returned as it is, with a mark that Compile refuses.
func HMAC(part Key) Key {
	if inner, ok := strings.CutSuffix(string(part), "}"); ok {
		return Key(inner + hmacMark + "}")
	}
	return part + "{" + hmacMark + "}"
}

// hmacMark ends a part that must stay private.
const hmacMark = "|hmac"

// A name may be anything; in a template three bytes of it would mean something else.
var (
	quote   = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D", "|", "%7C")
	unquote = strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}", "%7C", "|")
)
