package template_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/latchkit/latchkit/internal/template"
)

// A handler may read "042" as 42. So "042" and "42" must not lead to two different locks for one
// order.
func TestAFilterGivesOneIdentityOneSpelling(t *testing.T) {
	const id = "0198f3a2-5a0e-7cc3-8d1f-2b7d1c2f0a11"
	for filter, spellings := range map[string]map[string][]string{
		"int": {
			"42":                             {"42", "042", "0000042", "+42", "+042"},
			"-42":                            {"-42", "-042"},
			"0":                              {"0", "-0", "+0", "000", "-000"},
			"123456789012345678901234567890": {"123456789012345678901234567890", "+0123456789012345678901234567890"},
		},
		"uuid": {
			id: {
				id, strings.ToUpper(id), "{" + id + "}", "urn:uuid:" + id, "URN:UUID:" + strings.ToUpper(id),
				strings.ReplaceAll(id, "-", ""),
			},
		},
		"lower":     {"ann@example.org": {"ann@example.org", "Ann@Example.ORG"}, "straße": {"Straße"}},
		"nfc":       {"Zo\u00eb": {"Zo\u00eb", "Zoe\u0308"}},
		"lower|nfc": {"zo\u00eb": {"ZO\u00cb", "ZOE\u0308"}},
	} {
		compiled := compile(t, template.Key("order:{field.id|"+filter+"}"), nil)
		for want, values := range spellings {
			for _, value := range values {
				if got, err := compiled.Key(t.Context(), request{"id": value}); err != nil || got != "order:"+want {
					t.Errorf("%q|%s: %q, %v; want %q", value, filter, got, err, want)
				}
			}
		}
	}
}

func TestAFilterRefusesWhatItCannotRead(t *testing.T) {
	for filter, values := range map[string][]string{
		"int":  {"x", "4 2", " 42", "42 ", "0x2a", "4_2", "4.0", "1e3", "+", "-", "--1", "+-1", "٤٢"},
		"uuid": {"42", strings.Repeat("g", 32), strings.Repeat("0", 36), strings.Repeat("0", 31), "{0198f3a2-5a0e-7cc3-8d1f-2b7d1c2f0a11", "0198f3a25-a0e-7cc3-8d1f-2b7d1c2f0a11"},
	} {
		compiled := compile(t, template.Key("order:{field.id|"+filter+"}"), nil)
		for _, value := range values {
			got, err := compiled.Key(t.Context(), request{"id": value})
			if e, ok := errors.AsType[*template.Error](err); !ok || e.Part.Filters != filter || strings.Contains(err.Error(), value) && len(value) > 2 {
				t.Errorf("%q|%s: %q, %v; want an Error that does not show the value", value, filter, got, err)
			}
		}
		if _, err := compiled.Key(t.Context(), request{}); !errors.Is(err, template.ErrMissing) {
			t.Errorf("|%s of nothing: %v", filter, err)
		}
	}
}

func TestFiltersRunBeforeTheHMAC(t *testing.T) {
	compiled := compile(t, "mailbox:{field.mail|lower|hmac}", []byte("0123456789abcdef"))
	one, err1 := compiled.Key(t.Context(), request{"mail": "Ann@example.org"})
	other, err2 := compiled.Key(t.Context(), request{"mail": "ann@EXAMPLE.org"})
	if err1 != nil || err2 != nil || one != other || strings.Contains(one, "ann") {
		t.Errorf("%q, %q, %v, %v", one, other, err1, err2)
	}
}
