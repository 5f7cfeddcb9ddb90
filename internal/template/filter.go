package template

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/text/unicode/norm"
)

// filterHMAC must be the last filter, because it is applied while the key is encoded.
const filterHMAC = "hmac"

// A filter converts all spellings of a value to one spelling. The client sees the error that a
// filter returns.
type filter func(value string) (string, error)

var filters = map[string]filter{
	"int":   wholeNumber,
	"uuid":  uuid,
	"lower": func(value string) (string, error) { return strings.ToLower(value), nil },
	"text":  func(value string) (string, error) { return value, nil },
	"nfc":   func(value string) (string, error) { return norm.NFC.String(value), nil },
}

// filterForms is the list of filters in the text of errors.
const filterForms = "|int, |uuid, |lower, |nfc or |text, and |hmac as the last one"

// parseFilters reads the filters of a part, such as "lower|hmac". It returns the filters to apply,
// and whether the last filter is hmac.
func parseFilters(text string) (apply []filter, private bool, err error) {
	for text != "" {
		var word string
		word, text, _ = strings.Cut(text, "|")
		f, known := filters[word]
		switch {
		case word == filterHMAC && text == "" && !private:
			private = true
		case !known:
			return nil, false, fmt.Errorf("has the filter |%s, which is unknown or in the wrong place; write %s",
				word, filterForms)
		default:
			apply = append(apply, f)
		}
	}
	return apply, private, nil
}

var (
	errNoInt  = errors.New("it is not a whole number")
	errNoUUID = errors.New("it is not a UUID")
)

// wholeNumber returns the decimal digits of a whole number of any length, without leading zeros.
func wholeNumber(value string) (string, error) {
	sign, digits := "", value
	switch {
	case strings.HasPrefix(value, "-"):
		sign, digits = "-", value[1:]
	case strings.HasPrefix(value, "+"):
		digits = value[1:]
	}
	if digits == "" {
		return "", errNoInt
	}
	for i := range len(digits) {
		if digits[i] < '0' || digits[i] > '9' {
			return "", errNoInt
		}
	}
	digits = strings.TrimLeft(digits, "0")
	if digits == "" {
		return "0", nil
	}
	return sign + digits, nil
}

// uuid accepts the usual spellings of a UUID: with dashes, without dashes, in braces, and as a
// URN.
func uuid(value string) (string, error) {
	text := strings.ToLower(value)
	text = strings.TrimPrefix(text, "urn:uuid:")
	if inner, ok := strings.CutPrefix(text, "{"); ok {
		if text, ok = strings.CutSuffix(inner, "}"); !ok {
			return "", errNoUUID
		}
	}
	switch len(text) {
	case 32:
		text = text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:]
	case 36:
	default:
		return "", errNoUUID
	}
	for _, at := range []int{8, 13, 18, 23} {
		if text[at] != '-' {
			return "", errNoUUID
		}
	}
	if raw, err := hex.DecodeString(strings.ReplaceAll(text, "-", "")); err != nil || len(raw) != 16 {
		return "", errNoUUID
	}
	return text, nil
}
