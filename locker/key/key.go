package key

import "strings"

// A Key is the text of a template, such as "order:{param.id}". An untyped constant is a Key.
// [Join], [Part] and the functions of the adapters make a Key from typed parts.
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

// Int reads part as a whole number, so that "042" and "+42" make the same key as "42".
func Int(part Key) Key { return filtered(part, filterInt) }

// UUID reads part as a UUID, in any of its usual spellings.
func UUID(part Key) Key { return filtered(part, filterUUID) }

// Lower converts part to lower case.
func Lower(part Key) Key { return filtered(part, filterLower) }

// NFC converts part to Unicode's normal form C. It gives one spelling to an accented letter, which
// can otherwise be one or two code points.
func NFC(part Key) Key { return filtered(part, filterNFC) }

// HMAC replaces part by its HMAC.
func HMAC(part Key) Key { return filtered(part, filterHMAC) }

// filtered returns part with the given filter added. If part is not the text of one part, Compile
// later refuses the result.
func filtered(part Key, filter string) Key {
	if inner, ok := strings.CutSuffix(string(part), "}"); ok {
		return Key(inner + "|" + filter + "}")
	}
	return part + Key("{|"+filter+"}")
}

// A name may be any text. Four bytes have a special meaning in a template, so they are escaped.
var (
	quote   = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D", "|", "%7C")
	unquote = strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}", "%7C", "|")
)
