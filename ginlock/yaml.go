package ginlock

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/latchkit/latchkit/httplock"
	"github.com/latchkit/latchkit/locker"
)

// ParseRules reads Rules from YAML:
//
//	POST /orders/:id/pay:
//	  key: order:{param.id|int}
//	  wait: 250ms                  # none: refuse at once
//	  idempotency: "{claim.sub}"   # the scope of the route's idempotency keys
//	POST /baskets:
//	  keys: ["stock:{body.items.*.sku}", "customer:{claim.sub}"]
//	GET /articles/:slug:
//	  key: article:{param.slug}
//	  mode: shared                 # exclusive, or by-method; see WithModeByMethod
//	POST /visits:
//	  lock: none                   # this route needs none
//
// Further members are name, ttl, keep-for, end-after, once-for, status, fail-open, lifetime,
// max-body (a number of bytes, or 64KiB, 1MiB) and streamed-body. An unknown or repeated member, or
// a member without a value, is an error with its position. A text without rules, or with several
// documents, is an error, too.
func ParseRules(text []byte) (httplock.Rules, error) {
	written, errs, err := read(text)
	if err != nil {
		return nil, fmt.Errorf("ginlock: the rules cannot be read: %w", err)
	}
	rules := make(httplock.Rules, len(written))
	for _, route := range slices.Sorted(maps.Keys(written)) {
		rule, err := written[route].rule()
		if err != nil {
			errs = append(errs, fmt.Errorf("ginlock: rule %q: %w", route, err))
		}
		rules[route] = rule
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if len(rules) == 0 {
		return nil, errors.New("ginlock: there are no rules in the text; is the file empty, or is it the wrong file?")
	}
	return rules, nil
}

// read decodes the only document of text. empty has an error for each member without a value, which
// the decoder takes for a member that is left out.
func read(text []byte) (written map[string]writtenRule, empty emptyMembers, err error) {
	tokens := lexer.Tokenize(string(text))
	if line := secondDocument(tokens); line > 0 {
		return nil, nil, fmt.Errorf("line %d begins a second document; write all rules into one document, without --- or ... between them", line)
	}
	if err := yaml.UnmarshalWithOptions(text, &written, yaml.Strict()); err != nil {
		return nil, nil, err
	}
	file, err := parser.Parse(tokens, 0)
	if err != nil {
		return nil, nil, err
	}
	for _, doc := range file.Docs {
		ast.Walk(&empty, doc.Body)
	}
	return written, empty, nil
}

// secondDocument returns the line in which a second document begins, or 0. The decoder reads the
// first document only, and the parser loses a document after two markers.
func secondDocument(tokens token.Tokens) int {
	begun, ended, directive := false, false, 0
	for _, t := range tokens {
		switch line := t.Position.Line; {
		case t.Type == token.CommentType, line == directive:
		case t.Type == token.DirectiveType:
			directive = line // it stands before a document
		case t.Type == token.DocumentHeaderType, t.Type == token.DocumentEndType:
			ended = begun
		case ended:
			return line
		default:
			begun = true
		}
	}
	return 0
}

// emptyMembers has an error for each member without a value among the nodes that it has visited.
type emptyMembers []error

// Visit looks at one node.
func (e *emptyMembers) Visit(n ast.Node) ast.Visitor {
	if m, ok := n.(*ast.MappingValueNode); ok && isEmpty(m.Value) {
		*e = append(*e, fmt.Errorf("ginlock: line %d: %s has no value; write the value, or leave %[2]s out",
			m.Key.GetToken().Position.Line, m.Key))
	}
	return e
}

func isEmpty(value ast.Node) bool {
	switch v := value.(type) {
	case nil, *ast.NullNode:
		return true
	case *ast.StringNode:
		return v.Value == ""
	case *ast.LiteralNode:
		return isEmpty(v.Value)
	case *ast.SequenceNode:
		return len(v.Values) == 0
	case *ast.AnchorNode:
		return isEmpty(v.Value)
	case *ast.TagNode:
		return isEmpty(v.Value)
	}
	return false
}

// writtenRule is the YAML form of a Rule.
type writtenRule struct {
	Key      string   `yaml:"key"`
	Keys     []string `yaml:"keys"`
	Lock     string   `yaml:"lock"`
	Name     string   `yaml:"name"`
	Mode     string   `yaml:"mode"`
	TTL      string   `yaml:"ttl"`
	Wait     string   `yaml:"wait"`
	Limit    int      `yaml:"limit"`
	Weight   int      `yaml:"weight"`
	KeepFor  string   `yaml:"keep-for"`
	EndAfter string   `yaml:"end-after"`
	OnceFor  string   `yaml:"once-for"`
	Status   int      `yaml:"status"`
	FailOpen bool     `yaml:"fail-open"`

	Idempotency string `yaml:"idempotency"`
	Lifetime    string `yaml:"lifetime"`

	MaxBody      string `yaml:"max-body"`
	StreamedBody bool   `yaml:"streamed-body"`
}

func (w writtenRule) rule() (httplock.Rule, error) {
	r := httplock.Rule{
		Key: httplock.Key(w.Key), Name: w.Name, Status: w.Status, FailOpen: w.FailOpen, Idempotency: httplock.Key(w.Idempotency), StreamedBody: w.StreamedBody,
		Limit: w.Limit, Weight: w.Weight,
	}
	for _, k := range w.Keys {
		r.Keys = append(r.Keys, httplock.Key(k))
	}
	switch w.Mode {
	case "", "exclusive":
	case "shared":
		r.Mode = locker.Shared
	case "by-method":
		r.ModeByMethod = true
	default:
		return r, fmt.Errorf("its mode %q is unknown; write exclusive, shared or by-method", w.Mode)
	}
	switch w.Lock {
	case "":
	case "none":
		r.NoLock = true
	default:
		return r, fmt.Errorf("its lock %q is unknown; write lock: none, or leave lock out and write a key", w.Lock)
	}
	if w.Wait == "none" {
		w.Wait, r.Wait = "", locker.NoWait
	}
	for _, t := range []struct {
		member, text string
		to           *time.Duration
	}{
		{"ttl", w.TTL, &r.TTL}, {"wait", w.Wait, &r.Wait}, {"keep-for", w.KeepFor, &r.KeepFor}, {"end-after", w.EndAfter, &r.EndAfter},
		{"once-for", w.OnceFor, &r.OnceFor}, {"lifetime", w.Lifetime, &r.Lifetime},
	} {
		if t.text == "" {
			continue
		}
		d, err := time.ParseDuration(t.text)
		if t.member == "wait" && err == nil && d == 0 {
			return r, errors.New("its wait is 0; write wait: none to refuse at once, or a time such as 250ms")
		}
		if err != nil || d <= 0 {
			return r, fmt.Errorf("its %s %q is no time; write for example 250ms, 10s or 24h", t.member, t.text)
		}
		*t.to = d
	}
	var err error
	r.MaxBody, err = bytesOf("max-body", w.MaxBody)
	return r, err
}

// bytesOf reads a number of bytes, such as "65536", "64KiB" or "1MiB". The empty text is 0.
func bytesOf(member, text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	digits, unit := text, int64(1)
	for suffix, size := range map[string]int64{"KiB": 1 << 10, "MiB": 1 << 20} {
		if before, ok := strings.CutSuffix(text, suffix); ok {
			digits, unit = strings.TrimSpace(before), size
		}
	}
	n, err := strconv.ParseInt(digits, 10, 32)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("its %s %q is no size; write for example 65536, 64KiB or 1MiB", member, text)
	}
	return n * unit, nil
}
