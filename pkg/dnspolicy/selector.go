// SPDX-License-Identifier: Apache-2.0

package dnspolicy

import (
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// maxSelector is the longest selector that Calico's API takes, in bytes.
const maxSelector = 1024

// tokens are those of a selector of Calico's: values in quotes, operators, and names, which keywords are too.
var tokens = regexp.MustCompile(`"[^"]*"|'[^']*'|&&|\|\||==|!=|[!(){},]|[A-Za-z0-9_./-]+`)

// matchCalico says whether a selector of Calico's language matches labels. It knows all(), has(), ==, !=, in, not in, !, && and ||; what else
// it reads is unknown. An empty selector matches all.
func matchCalico(text string, set labels.Set) Verdict {
	if strings.TrimSpace(text) == "" {
		return Allowed
	}
	if len(text) > maxSelector || strings.Trim(tokens.ReplaceAllString(text, ""), " \t") != "" {
		return Unknown
	}
	p := &parser{tokens: tokens.FindAllString(text, -1), set: set}
	v := p.or()
	if p.failed || len(p.tokens) > 0 {
		return Unknown
	}
	return verdict(v)
}

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

func (p *parser) expect(token string) { p.failed = !p.take(token) || p.failed }

// next takes a token of a kind: whether it is a value in quotes, or a name.
func (p *parser) next(quoted bool) (token string) {
	const quotes, operators = `"'`, "!(){},&|="
	if len(p.tokens) == 0 || strings.Contains(operators, p.tokens[0][:1]) || strings.Contains(quotes, p.tokens[0][:1]) != quoted {
		p.failed = true
		return ""
	}
	token, p.tokens = p.tokens[0], p.tokens[1:]
	if quoted {
		return token[1 : len(token)-1]
	}
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
	case p.take("all"):
		p.expect("(")
		p.expect(")")
		return true
	case p.take("has"):
		p.expect("(")
		_, has := p.label()
		p.expect(")")
		return has
	}
	value, has := p.label()
	switch {
	case p.take("=="):
		return p.next(true) == value && has
	case p.take("!="):
		return p.next(true) != value || !has
	case p.take("in"):
		return slices.Contains(p.values(), value) && has
	case p.take("not"):
		p.expect("in")
		return !slices.Contains(p.values(), value) || !has
	}
	p.failed = true // global() too: it is only for what has no namespace
	return false
}

// label takes a name, and returns the label.
func (p *parser) label() (value string, has bool) {
	value, has = p.set[p.next(false)]
	return value, has
}

// values are those of a list.
func (p *parser) values() (all []string) {
	p.expect("{")
	for !p.failed && !p.take("}") {
		if len(all) > 0 {
			p.expect(",")
		}
		all = append(all, p.next(true))
	}
	return all
}
