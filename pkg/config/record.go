// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/miekg/dns"
)

const (
	defaultTTL = 3600    // seconds, of a record whose text has no TTL
	maxRecord  = 4 << 16 // of the text of a record, in bytes: four digits for each byte of a message
)

var (
	errDirective = errors.New("it has a directive of a zone file ($INCLUDE, $GENERATE, $ORIGIN or $TTL)")
	errLong      = errors.New("it is longer than a message")
	errOne       = errors.New("there is not one")
	errClass     = errors.New("it is not of class IN")
	errType      = errors.New("its type is one of questions or messages")
)

// directive matches a directive at the start of a line, or of what follows an action, which may make nothing.
var directive = regexp.MustCompile(`(?im)(?:^|\}\})\$(?:include|generate|origin|ttl)(?:[\s"();{]|$)`)

// A Record is the text of a record in a [Template], as [ParseRecord] reads it.
type Record struct{ text *template.Template }

// ParseRecord reads the text of a record: the form of a zone file without directives, with the actions of text/template
// on [TemplateData]. Actions that could run for long or make long texts are errors, some of them in [Record.Make].
// There is the function parseInt: strconv.ParseUint.
func ParseRecord(text string) (*Record, error) {
	t, err := parseRecord(text)
	if err != nil {
		return nil, fmt.Errorf("reading the template of a record: %w", err)
	}
	return &Record{text: t}, nil
}

func parseRecord(text string) (*template.Template, error) {
	if strings.Count(text, "{{") > maxActions {
		return nil, fmt.Errorf("more than %d actions", maxActions)
	}
	if directive.MatchString(text) {
		return nil, errDirective
	}
	t, err := template.New("record").Funcs(recordFuncs()).Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, err
	}
	if len(t.Templates()) > 1 {
		return nil, errors.New("it defines templates of its own")
	}
	if t.Tree != nil && endless(t.Root) {
		return nil, errors.New("it has range or template in it")
	}
	return t, nil
}

// endless reports whether something in a tree could be executed more than once.
func endless(n parse.Node) bool {
	switch n := n.(type) {
	case *parse.RangeNode, *parse.TemplateNode:
		return true
	case *parse.ListNode:
		return n != nil && slices.ContainsFunc(n.Nodes, endless)
	case *parse.IfNode:
		return endless(n.List) || endless(n.ElseList)
	case *parse.WithNode:
		return endless(n.List) || endless(n.ElseList)
	}
	return false
}

// Make returns the record for a question. It is nil if the template yields no text. The text may depend on
// the name that a client asks for: it is one record, and never a directive, which could read files.
func (r *Record) Make(q *TemplateData) (dns.RR, error) {
	var b strings.Builder
	if err := r.text.Execute(&b, *q); err != nil {
		return nil, fmt.Errorf("executing it: %w", err)
	}
	text := b.String()
	if strings.TrimSpace(text) == "" {
		return nil, nil //nolint:nilnil // a condition has left it out
	}
	rr, err := oneRecord(text)
	if err != nil {
		return nil, fmt.Errorf("reading the record: %w", err)
	}
	return rr, nil
}

func oneRecord(text string) (dns.RR, error) {
	switch {
	case len(text) > maxRecord:
		return nil, errLong
	case directive.MatchString(text):
		return nil, errDirective
	}
	zone := dns.NewZoneParser(strings.NewReader(text+"\n"), ".", "")
	zone.SetIncludeAllowed(false)
	zone.SetDefaultTTL(defaultTTL)
	rr, found := zone.Next()
	_, more := zone.Next()
	if err := zone.Err(); err != nil {
		return nil, err
	}
	if !found || more {
		return nil, errOne
	}
	if rr.Header().Class != dns.ClassINET {
		return nil, errClass
	}
	// RFC 6895 section 3.1.
	if t := rr.Header().Rrtype; t == dns.TypeOPT || t == dns.TypeNone || 128 <= t && t <= 255 {
		return nil, errType
	}
	return rr, nil
}
