package template

import "strings"

// A Key is the text of a template, such as "order:{param.id|int}". An untyped constant is a Key.
// [Join] and [Part] make a Key from the names of parts.
type Key string

// Join puts a ':' between parts. An argument that is not a part is literal text.
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

// Part returns the part with this source and name. name is "" for a source with one value only.
func Part(source, name string) Key {
	if name == "" {
		return Key("{" + source + "}")
	}
	return Key("{" + source + "." + quote.Replace(name) + "}")
}

// A name may be any text. Four bytes have a special meaning in a template, so they are escaped.
var (
	quote   = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D", "|", "%7C")
	unquote = strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}", "%7C", "|")
)
