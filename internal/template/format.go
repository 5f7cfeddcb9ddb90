package template

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// Format returns the text of a value that its request does not hold as a string, for example a
// number in a claim, in a message or in JSON. Each number has one text, although a request can
// write the number in several ways. So 1.0 and 1 make the same key. The text of nil is "". For all
// other types, Format returns an error.
func Format(value any) (string, error) {
	switch v := value.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case json.Number:
		return formatNumber(string(v))
	case fmt.Stringer:
		return v.String(), nil
	case bool:
		return strconv.FormatBool(v), nil
	case int:
		return strconv.Itoa(v), nil
	case int32:
		return strconv.FormatInt(int64(v), 10), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case uint:
		return strconv.FormatUint(uint64(v), 10), nil
	case uint32:
		return strconv.FormatUint(uint64(v), 10), nil
	case uint64:
		return strconv.FormatUint(v, 10), nil
	case float32:
		return formatFloat(float64(v))
	case float64:
		return formatFloat(v)
	default:
		return "", fmt.Errorf("a %T is not a string, a number or a boolean", value)
	}
}

// exact is the largest number up to which a float64 can represent every whole number.
const exact = 1 << 53

var errInexact = errors.New("a number this large must be a whole number or a string")

// formatNumber returns the text of the number in text. It keeps the digits of a whole number of any
// length.
func formatNumber(text string) (string, error) {
	digits := text
	if len(digits) > 0 && digits[0] == '-' {
		digits = digits[1:]
	}
	if digits == "0" {
		return "0", nil // -0 becomes 0, too
	}
	for i := range len(digits) {
		if digits[i] < '0' || digits[i] > '9' {
			f, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return "", errInexact
			}
			return formatFloat(f)
		}
	}
	return text, nil
}

func formatFloat(f float64) (string, error) {
	switch {
	case math.IsNaN(f) || math.Abs(f) >= exact:
		return "", errInexact
	case f == math.Trunc(f):
		return strconv.FormatInt(int64(f), 10), nil
	default:
		return strconv.FormatFloat(f, 'g', -1, 64), nil
	}
}
