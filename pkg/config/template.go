// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Template answers questions that have no other answer, from texts.
type Template struct {
	Zone  string   // lower-case and absolute: the names at and below it
	Types []uint16 // of the questions, unique; empty: every type

	// Match are regular expressions, of which one must match the name: in lower case, with its dot at the end. Empty:
	// every name does. The first that matches gives the groups.
	Match []string

	Rcode      int      // of the answer, one of the first six: 0..5; default 0, NOERROR
	Answer     []string // records in the form of a zone file, with the actions of text/template in them
	Authority  []string // likewise
	Additional []string // likewise
}

// TemplateData is what the actions in the records of a [Template] see.
type TemplateData struct {
	Name  string            // that is asked for: lower-case and absolute
	Zone  string            // of the template
	Type  string            // of the question, like AAAA
	Class string            // always IN
	Match []string          // the part of the name that the expression matches, then its groups; without one the name
	Group map[string]string // the groups by number and, where they have one, by name
}

// templates reads the list of templates.
func templates(dst *[]Template) func(node) {
	return func(n node) {
		items, ok := n.items()
		if !ok {
			return
		}
		var list []Template
		for _, item := range items {
			var t Template
			if !item.fields(templateFields(&t)) {
				continue
			}
			if t.Zone == "" && n.report.clean(item.child("zone")) {
				n.report.add(Problem{Path: item.child("zone"), What: "missing", Hint: `write "." for all names`})
			}
			if n.report.clean(item.path) {
				item.checkRecords(&t)
			}
			list = append(list, t)
		}
		*dst = list
	}
}

// expression returns the value of n when it is a regular expression, and reports anything else.
func (n node) expression() (string, bool) {
	text, ok := n.stringOnly()
	if !ok {
		return "", false
	}
	if _, err := regexp.Compile(text); err != nil {
		n.reject("not a regular expression: "+strings.TrimPrefix(err.Error(), "error parsing regexp: "),
			"write it as Go's package regexp has it, in single quotes")
		return "", false
	}
	return text, true
}

// record returns the value of n when it is the text of a record, and reports anything else.
func (n node) record() (string, bool) {
	text, ok := n.stringOnly()
	if !ok {
		return "", false
	}
	if strings.TrimSpace(text) == "" {
		n.reject("no record", "write it like {{ .Name }} 60 IN A 192.0.2.1")
		return "", false
	}
	if _, err := ParseRecord(text); err != nil {
		what := strings.TrimPrefix(err.Error(), "reading the template of a record: ")
		n.reject("not a template: "+strings.TrimPrefix(what, "template: record:1: "), "write it like {{ .Name }} 60 IN A 192.0.2.1")
		return "", false
	}
	return text, true
}

// rcodes are the codes of answers that a template may give, each at its number.
func rcodes() []string {
	return []string{"NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED"}
}

func rcode(dst *int) func(node) {
	return func(n node) {
		word := rcodes()[0]
		choice(&word, rcodes()...)(n)
		*dst = slices.Index(rcodes(), word)
	}
}

// spellRcode is the inverse of rcode.
func spellRcode(code int) string {
	if code < 0 || code >= len(rcodes()) {
		return text("code " + strconv.Itoa(code))
	}
	return rcodes()[code]
}

// checkRecords tries the records of a template with a question that is made up, and reports those that give none.
func (n node) checkRecords(t *Template) {
	questions := samples(t)
	for _, section := range []struct {
		key   string
		texts []string
	}{{"answer", t.Answer}, {"authority", t.Authority}, {"additional", t.Additional}} {
		for i, text := range section.texts {
			if err := tryRecord(text, questions); err != nil {
				n.report.add(Problem{
					Path: fmt.Sprintf("%s[%d]", n.child(section.key), i), What: quote(text) + ": no record: " + err.Error(),
					Hint: "write it like {{ .Name }} 60 IN A 192.0.2.1",
				})
			}
		}
	}
}

// tryRecord says why a text gives no record for the first of the questions. One that it gives a record for is enough.
// That it gives nothing at all is no fault: a condition may leave it out.
func tryRecord(text string, questions []TemplateData) (first error) {
	record, err := ParseRecord(text)
	if err != nil {
		return err
	}
	for _, q := range questions {
		_, err := record.Make(&q)
		if err == nil {
			return nil
		}
		if first == nil {
			first = fmt.Errorf("for %s %s: %w", q.Name, q.Type, err)
		}
	}
	return first
}
