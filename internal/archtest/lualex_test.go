package archtest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// luaToken is a word of a Lua script; a string is without its quotes.
type luaToken struct {
	kind luaKind
	text string
	line int
}

type luaKind uint8

const (
	luaName luaKind = iota
	luaNumber
	luaString
	luaSymbol
)

// luaForms are tried in this order at each place; what is neither is no Lua.
var luaForms = []struct {
	kind luaKind
	drop bool // space and comments
	form *regexp.Regexp
}{
	{drop: true, form: regexp.MustCompile(`^\s+`)},
	{drop: true, form: regexp.MustCompile(`(?s)^--\[\[.*?\]\]`)},
	{drop: true, form: regexp.MustCompile(`^--[^\n]*`)},
	{kind: luaString, form: regexp.MustCompile(`(?s)^\[\[.*?\]\]`)},
	{kind: luaString, form: regexp.MustCompile(`^"(?:[^"\\\n]|\\.)*"`)},
	{kind: luaString, form: regexp.MustCompile(`^'(?:[^'\\\n]|\\.)*'`)},
	{kind: luaName, form: regexp.MustCompile(`^[A-Za-z_]\w*`)},
	{kind: luaNumber, form: regexp.MustCompile(`^(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)`)},
	{kind: luaSymbol, form: regexp.MustCompile(`^(?:\.\.\.|\.\.|==|~=|<=|>=|[-+*/%^#<>=(){}\[\];:,.])`)},
}

// lexLua splits a script into tokens, without its comments.
func lexLua(text string) (code luaCode, err error) {
	line := 1
next:
	for text != "" {
		for _, f := range luaForms {
			found := f.form.FindString(text)
			if found == "" {
				continue
			}
			if !f.drop {
				code = append(code, luaToken{f.kind, unquoted(f.kind, found), line})
			}
			line += strings.Count(found, "\n")
			text = text[len(found):]
			continue next
		}
		return nil, fmt.Errorf("line %d cannot be read from %.20q on", line, text)
	}
	return code, nil
}

func unquoted(kind luaKind, text string) string {
	switch {
	case kind != luaString:
		return text
	case strings.HasPrefix(text, "[["):
		return text[2 : len(text)-2]
	}
	return text[1 : len(text)-1]
}

// is tells names, numbers and symbols; a string is never one of them.
func (t luaToken) is(text string) bool { return t.kind != luaString && t.text == text }

// luaCode is a script's tokens; beyond its ends lie empty ones.
type luaCode []luaToken

func (c luaCode) at(i int) luaToken {
	if i < 0 || i >= len(c) {
		return luaToken{kind: luaSymbol}
	}
	return c[i]
}

// follow tells whether the tokens from i on are these.
func (c luaCode) follow(i int, texts ...string) bool {
	for n, text := range texts {
		if !c.at(i + n).is(text) {
			return false
		}
	}
	return true
}

// inside returns the tokens between the bracket at i and its partner.
func (c luaCode) inside(i int) luaCode {
	depth := 0
	for j := i; j < len(c); j++ {
		switch {
		case c[j].is("("), c[j].is("["), c[j].is("{"):
			depth++
		case c[j].is(")"), c[j].is("]"), c[j].is("}"):
			if depth--; depth == 0 {
				return c[i+1 : j]
			}
		}
	}
	return c[i+1:]
}

// index returns what stands in the brackets after the name at i: KEYS[…].
func (c luaCode) index(i int) luaCode {
	if c.at(i + 1).is("[") {
		return c.inside(i + 1)
	}
	return luaCode{}
}

// isCall tells whether the name at i is that of a function which is called there.
func (c luaCode) isCall(i int) bool {
	return c[i].kind == luaName && c.at(i+1).is("(") && !c.at(i-1).is(".") && !c.at(i-1).is("function")
}

// calledOf is the first of these functions that is called.
func (c luaCode) calledOf(names []string) string {
	for i, t := range c {
		if slices.Contains(names, t.text) && c.isCall(i) {
			return t.text
		}
	}
	return ""
}

// functions are the local functions that are defined outside of all others, and the line of the first code that lies in
// none, or 0.
func (c luaCode) functions() (names []string, stray int) {
	depth := 0
	for i, t := range c {
		if depth == 0 {
			switch {
			case t.is("local") && c.at(i+1).is("function"):
			case t.is("function") && c.at(i-1).is("local"):
				names = append(names, c.at(i+1).text)
			case stray == 0:
				stray = t.line
			}
		}
		switch {
		case t.is("function"), t.is("if"), t.is("do"), t.is("repeat"):
			depth++
		case t.is("end"), t.is("until"):
			depth--
		}
	}
	return names, stray
}

// split cuts at the commas that lie in no bracket.
func (c luaCode) split() (parts []luaCode) {
	depth, from := 0, 0
	for i, t := range c {
		switch {
		case t.is("("), t.is("["), t.is("{"):
			depth++
		case t.is(")"), t.is("]"), t.is("}"):
			depth--
		case t.is(",") && depth == 0:
			parts = append(parts, c[from:i])
			from = i + 1
		}
	}
	if len(c) > 0 {
		parts = append(parts, c[from:])
	}
	return parts
}

func (c luaCode) String() string {
	texts := make([]string, len(c))
	for i, t := range c {
		texts[i] = t.text
		if t.kind == luaString {
			texts[i] = "'" + t.text + "'"
		}
	}
	return strings.Join(texts, " ")
}

func TestLexLua(t *testing.T) {
	t.Parallel()
	code, err := lexLua("-- KEYS[9]\nlocal a = redis.call('GET', \"it's\", KEYS[1]..[[x]]) --[[ no\nno ]] if a~=1.5 then end -- no")
	if err != nil {
		t.Fatal(err)
	}
	const want = "local a = redis . call ( 'GET' , 'it's' , KEYS [ 1 ] .. 'x' ) if a ~= 1.5 then end"
	if got := code.String(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if last := code[len(code)-1]; last.line != 3 {
		t.Errorf("the last word is on line 3, not %d", last.line)
	}
	open := slices.IndexFunc(code, func(t luaToken) bool { return t.is("(") })
	if parts := code.inside(open).split(); len(parts) != 3 || parts[2].String() != "KEYS [ 1 ] .. 'x'" {
		t.Errorf("the call's arguments are %v", parts)
	}
	if _, err := lexLua("local a = 'open\n"); err == nil {
		t.Error("a string that does not end is no Lua")
	}
}
