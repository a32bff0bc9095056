// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/miekg/dns"
)

// TemplateData is what the actions in the records of a [Template] see.
type TemplateData struct {
	Name  string            // name of the question: lower-case and absolute
	Zone  string            // zone of the template
	Type  string            // type of the question, like AAAA
	Class string            // always IN
	Match []string          // the part of the name that the expression matches, then its groups; without one the name
	Group map[string]string // the groups by number and, where they have one, by name
}

const recordHint = "write it like {{ .Name }} 60 IN A 192.0.2.1"

// parseExpression reads a regular expression.
func parseExpression(text string) (string, *Problem) {
	if _, err := regexp.Compile(text); err != nil {
		return "", problem("not a regular expression: "+strings.TrimPrefix(err.Error(), "error parsing regexp: "),
			"write it as Go's package regexp has it, in single quotes")
	}
	return text, nil
}

// parseRecordText reads the text of a record.
func parseRecordText(text string) (string, *Problem) {
	if strings.TrimSpace(text) == "" {
		return "", problem("no record", recordHint)
	}
	t, err := parseRecord(text)
	if err != nil {
		return "", problem("not a template: "+strings.TrimPrefix(err.Error(), "template: record:1: "), recordHint)
	}
	// The real questions come later. Two mistakes show with any question: a text without actions that is no record, and an unknown field.
	_, err = makeRecord(t, &TemplateData{})
	if err != nil && (!strings.Contains(text, "{{") || strings.Contains(err.Error(), "can't evaluate field")) {
		return "", problem("no record: "+err.Error(), recordHint)
	}
	return text, nil
}

const (
	defaultTTL = 3600    // TTL of a record whose text has none, in seconds
	maxRecord  = 4 << 16 // size of the text of a record, in bytes: four digits for each byte of a message
)

var (
	errDirective = errors.New("it has a directive of a zone file ($INCLUDE, $GENERATE, $ORIGIN or $TTL)")
	errLong      = errors.New("it is longer than a message")
	errOne       = errors.New("there is not one")
	errClass     = errors.New("it is not of class IN")
	errType      = errors.New("its type is one of questions or messages")
)

// directive matches a directive of a zone file at the start of a line, or after an action, whose text may be empty.
var directive = regexp.MustCompile(`(?im)(?:^|\}\})\$(?:include|generate|origin|ttl)(?:[\s"();{]|$)`)

// ParseRecord reads the text of a record in a [Template]: the form of a zone file without directives, with the actions of
// text/template on [TemplateData]. Actions that could run for long or make long texts are errors, some of them of what it
// returns. There is the function parseInt: strconv.ParseUint.
//
// The function that it returns makes the record for a question, nil if the template yields no text. The text may depend on
// the name that a client queries. It must be one record, and never a directive, which could read files.
func ParseRecord(text string) (func(*TemplateData) (dns.RR, error), error) {
	t, err := parseRecord(text)
	if err != nil {
		return nil, fmt.Errorf("reading the template of a record: %w", err)
	}
	return func(q *TemplateData) (dns.RR, error) { return makeRecord(t, q) }, nil
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

func makeRecord(t *template.Template, q *TemplateData) (dns.RR, error) {
	var b strings.Builder
	if err := t.Execute(&b, *q); err != nil {
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

// Bounds on what the text of a [Template] may make. Without them a line of actions that double a text fills the memory.
const (
	maxActions    = 256     // actions in a record
	maxActionText = 8 << 10 // text that one action makes, in bytes
	maxDigits     = 3       // digits of a width or a precision
)

var errActionText = errors.New("it makes a text longer than 8 KiB")

// recordFuncs are the functions of records: those of text/template that make text, with bounds, and parseInt.
func recordFuncs() template.FuncMap {
	return template.FuncMap{
		"parseInt": strconv.ParseUint,
		"print":    bounded(fmt.Sprint),
		"println":  bounded(fmt.Sprintln),
		"html":     bounded(template.HTMLEscaper),
		"js":       bounded(template.JSEscaper),
		"urlquery": bounded(template.URLQueryEscaper),
		"printf":   boundedPrintf,
	}
}

// bounded returns do with a bound on its text. It checks the arguments first, so as not to make a text that is too long.
func bounded(do func(...any) string) func(...any) (string, error) {
	return func(args ...any) (string, error) {
		if textSize(args) > maxActionText {
			return "", errActionText
		}
		text := do(args...)
		if len(text) > maxActionText {
			return "", errActionText
		}
		return text, nil
	}
}

// boundedPrintf is fmt.Sprintf with bounds: a verb can have a width beyond its argument, or use an argument again.
func boundedPrintf(format string, args ...any) (string, error) {
	digits, verbs, isVerb := 0, 0, false
	for _, c := range format {
		isDigit := '0' <= c && c <= '9'
		switch {
		case c == '%':
			isVerb = !isVerb
			verbs++
			digits = 0
		case !isVerb:
		case isDigit:
			digits++
		case c == '*', digits > maxDigits:
			return "", fmt.Errorf("%q: a width is a number of %d digits at most", format, maxDigits)
		case strings.ContainsRune("+-# .[]", c):
			digits = 0
		default: // the letter that ends the verb
			isVerb, digits = false, 0
		}
	}
	const widest, escaped = 1000, 4 // the largest width, and the most characters that a verb makes of a byte
	if len(format) > maxActionText || verbs*(widest+escaped*textSize(args)) > 64*maxActionText {
		return "", errActionText
	}
	return bounded(func(...any) string { return fmt.Sprintf(format, args...) })()
}

// textSize estimates the length of the texts of values, in bytes. Values that are not strings are parts of a question.
func textSize(args []any) int {
	size := len(args)
	for _, arg := range args {
		if text, is := arg.(string); is {
			size += len(text)
		}
	}
	return size
}
