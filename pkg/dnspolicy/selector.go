// SPDX-License-Identifier: Apache-2.0

package dnspolicy

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// maxSelector is the longest selector that Calico's API takes, in bytes.
const maxSelector = 1024

// matchCalico says whether a selector of Calico's language matches labels. It knows all(), has(), ==, !=, in, not in, !, && and ||; what else
// it reads is unknown. An empty selector matches all.
func matchCalico(text string, set labels.Set) Verdict {
	if strings.TrimSpace(text) == "" {
		return Allowed
	}
	if len(text) > maxSelector {
		return Unknown
	}
	tokens, ok := tokenize(text)
	p := &parser{tokens: tokens, set: set}
	v := p.or()
	if !ok || p.failed || len(p.tokens) > 0 {
		return Unknown
	}
	return verdict(v)
}

// tokenize splits a selector: values in quotes, names, operators.
func tokenize(text string) (tokens []string, ok bool) {
	for text = strings.TrimLeft(text, " \t"); text != ""; text = strings.TrimLeft(text, " \t") {
		n := 1
		switch {
		case text[0] == '"' || text[0] == '\'':
			n = 2 + strings.IndexByte(text[1:], text[0])
			ok = n > 1
		case slices.Contains([]string{"&&", "||", "==", "!="}, text[:min(2, len(text))]):
			n, ok = 2, true
		case strings.IndexByte("!(){},", text[0]) >= 0:
			ok = true
		default:
			n = len(text) - len(strings.TrimLeft(text, nameLetters))
			ok = n > 0
		}
		if !ok {
			return nil, false
		}
		tokens, text = append(tokens, text[:n]), text[n:]
	}
	return tokens, true
}

// nameLetters are those of names and of keywords.
const nameLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-"

// A parser evaluates while it reads.
type parser struct {
	tokens []string
	set    labels.Set
	failed bool
}

// take takes a token, if it is next.
func (p *parser) take(token string) bool {
	if len(p.tokens) == 0 || p.tokens[0] != token {
		return false
	}
	p.tokens = p.tokens[1:]
	return true
}

func (p *parser) expect(token string) {
	if !p.take(token) {
		p.failed = true
	}
}

func (p *parser) next() string {
	if len(p.tokens) == 0 {
		p.failed = true
		return ""
	}
	token := p.tokens[0]
	p.tokens = p.tokens[1:]
	return token
}

func (p *parser) or() bool {
	v := p.and()
	for p.take("||") {
		v = p.and() || v
	}
	return v
}

func (p *parser) and() bool {
	v := p.term()
	for p.take("&&") {
		v = p.term() && v
	}
	return v
}

func (p *parser) term() bool {
	switch {
	case p.take("!"):
		return !p.term()
	case p.take("("):
		v := p.or()
		p.expect(")")
		return v
	}
	name := p.next()
	if !isName(name) {
		p.failed = true
		return false
	}
	if p.take("(") {
		return p.function(name)
	}
	value, has := p.set[name]
	switch {
	case p.take("=="):
		return p.value() == value && has
	case p.take("!="):
		return p.value() != value || !has
	case p.take("in"):
		return slices.Contains(p.values(), value) && has
	case p.take("not"):
		p.expect("in")
		return !slices.Contains(p.values(), value) || !has
	}
	p.failed = true
	return false
}

func (p *parser) function(name string) (v bool) {
	switch name {
	case "all":
		v = true
	case "has":
		key := p.next()
		_, v = p.set[key]
		p.failed = p.failed || !isName(key)
	default: // global() is only for what has no namespace
		p.failed = true
	}
	p.expect(")")
	return v
}

// isName reports whether a token is a name, not a value or an operator.
func isName(token string) bool { return token != "" && strings.Trim(token, nameLetters) == "" }

func (p *parser) value() string {
	token := p.next()
	if len(token) < 2 || token[0] != '"' && token[0] != '\'' {
		p.failed = true
		return ""
	}
	return token[1 : len(token)-1]
}

// values are those of a list.
func (p *parser) values() (all []string) {
	p.expect("{")
	for !p.failed && !p.take("}") {
		if len(all) > 0 {
			p.expect(",")
		}
		all = append(all, p.value())
	}
	return all
}
