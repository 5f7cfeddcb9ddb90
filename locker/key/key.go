package key

import "strings"

// A Key is the text of a template, such as "order:{param.id}". An untyped constant is one. [Join],
// [Part] and the functions of the adapters make a Key from typed parts.
type Key string

// Join puts a ':' between parts. An argument that is no part is literal text.
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

// Part is the part of a request that source calls name. name is "" for a source with one value
// only.
func Part(source, name string) Key {
	if name == "" {
		return Key("{" + source + "}")
	}
	return Key("{" + source + "." + quote.Replace(name) + "}")
}

// Int is part read as a whole number: "042" and "+42" make the key of "42".
func Int(part Key) Key { return filtered(part, filterInt) }

// UUID is part read as a UUID, in any of its usual spellings.
func UUID(part Key) Key { return filtered(part, filterUUID) }

// Lower is part in lower case.
func Lower(part Key) Key { return filtered(part, filterLower) }

// NFC is part in Unicode's normal form C: an accented letter is the same in one code point or in
// two.
func NFC(part Key) Key { return filtered(part, filterNFC) }

// HMAC is part, replaced by its HMAC.
func HMAC(part Key) Key { return filtered(part, filterHMAC) }

// filtered adds a filter to a part. Compile refuses the result when part is none.
func filtered(part Key, filter string) Key {
	if inner, ok := strings.CutSuffix(string(part), "}"); ok {
		return Key(inner + "|" + filter + "}")
	}
	return part + Key("{|"+filter+"}")
}

// A name may be any text. In a template four bytes of it would mean something else.
var (
	quote   = strings.NewReplacer("%", "%25", "{", "%7B", "}", "%7D", "|", "%7C")
	unquote = strings.NewReplacer("%25", "%", "%7B", "{", "%7D", "}", "%7C", "|")
)
