// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"text/template/parse"

	"github.com/miekg/dns"
	"go.yaml.in/yaml/v3"
)

// HostTable is a list of names with addresses, in the order of the names, each once.
type HostTable []Host

// Host is a name with its addresses.
type Host struct {
	Name      string       // lower-case and absolute, not the root
	Addresses []netip.Addr // unique, never empty, in the order of the file; of both families mixed
}

// decode implements [decoded]: a mapping from names to lists of addresses.
func (t *HostTable) decode(d *decoder, path string, n *yaml.Node) bool {
	if n.Kind != yaml.MappingNode {
		d.reject(path, n, problem("not a mapping", "write it like {db.example: [192.0.2.1]}"))
		return false
	}
	addresses := field{tag: `required:"name at least one address"`, format: textFormat(parseHostAddress, netip.Addr.String)}
	var list []Host
	seen := map[string]string{}
	for _, p := range d.pairs(path, n, 0) {
		child := childPath(path, p.key)
		name, bad := parseHostKey(p)
		if bad != nil {
			d.addAt(p.at, Problem{Path: child, What: quote(p.key) + ": " + bad.What, Hint: bad.Hint})
			continue
		}
		if first, again := seen[name]; again {
			if first != child { // else it is reported as a key that is set twice
				d.addAt(p.at, Problem{Path: child, What: "the name is already at " + first})
			}
			continue
		}
		seen[name] = child
		if isNull(p.value) {
			d.addAt(p.at, Problem{Path: child, What: "empty: not a list", Hint: "name at least one address"})
			continue
		}
		h := Host{Name: name}
		d.decode(child, p.value, reflect.ValueOf(&h.Addresses).Elem(), &addresses)
		if len(h.Addresses) > 0 {
			list = append(list, h)
		}
	}
	slices.SortFunc(list, func(a, b Host) int { return strings.Compare(a.Name, b.Name) })
	*t = list
	return true
}

// parseHostKey returns the name of a host. Other programs that write the file, such as Helm, take y, no and 010 for
// values and write others in their place, quoted.
func parseHostKey(p pair) (string, *Problem) {
	isNumber := p.key != "" && p.key[0] <= '9' && p.key[0] != '"' && json.Valid([]byte(p.key))
	if isNumber || p.key == "true" || p.key == "false" || !p.isString {
		return "", problem("not known to be a name: y, no, 010 and their like are values in YAML", "write the name with a dot at its end")
	}
	return parseName(p.key)
}

// Rewrite asks for another name in place of the one that a client has asked for. Both texts are of names in lower case
// without the dot at their end.
type Rewrite struct {
	Kind RewriteKind
	From string // never empty, never the same as To
	To   string // empty only with RewritePrefix and RewriteSuffix
}

// rewriteRule is the form of a [Rewrite] in a file.
type rewriteRule struct {
	// The whole name.
	Exact *string `yaml:"exact" format:"part" example:"shop.example"`
	// The beginning of a name, whether or not a label ends there.
	Prefix *string `yaml:"prefix" format:"part" example:"old-"`
	// The end of a name, whether or not a label begins there: write a dot before it where one should.
	Suffix *string `yaml:"suffix" format:"part" example:".old.example"`
	// What stands in its place: with `exact` the whole name, else a part that may be empty.
	To *string `yaml:"to" format:"part" example:"shop.prod.svc.cluster.local,new-,.new.example"`
}

// newRewriteRule returns the form of r, without anything if r is none.
func newRewriteRule(r *Rewrite) *rewriteRule {
	rule := &rewriteRule{}
	if from := rule.from(); int(r.Kind) < len(from) {
		*from[r.Kind], rule.To = &r.From, &r.To
	}
	return rule
}

// from returns the fields of the kinds.
func (r *rewriteRule) from() []**string { return []**string{&r.Exact, &r.Prefix, &r.Suffix} }

// decode implements [decoded].
func (r *Rewrite) decode(d *decoder, path string, n *yaml.Node) bool {
	rule := &rewriteRule{}
	if !d.decodeMapping(path, n, reflect.ValueOf(rule).Elem()) {
		return false
	}
	if !d.clean(path) {
		return true
	}
	count := 0
	for kind, from := range rule.from() {
		if *from != nil {
			count++
			r.Kind, r.From = RewriteKind(kind), **from
		}
	}
	switch {
	case count != 1:
		d.add(Problem{
			Path: path, What: strconv.Itoa(count) + " of exact, prefix and suffix are set",
			Hint: "a rule has one of them, like {suffix: .old.example, to: .new.example}",
		})
		return true
	case rule.To == nil:
		d.add(Problem{Path: path + ".to", What: "missing", Hint: "say what is asked for in its place"})
		return true
	}
	fromPath := path + "." + r.Kind.String()
	r.From = partOfName(d, fromPath, r.From, r.Kind, false)
	r.To = partOfName(d, path+".to", *rule.To, r.Kind, true)
	if r.From == r.To && d.clean(path) {
		d.add(Problem{Path: path + ".to", What: quote(r.To) + ": the same as " + r.Kind.String()})
	}
	return true
}

// partOfName returns the part of a name that a kind of rule replaces, in lower case and without a dot where the name
// ends. It reports what is none.
func partOfName(d *decoder, path, text string, kind RewriteKind, mayBeEmpty bool) string {
	part := text
	if kind != RewritePrefix {
		part = strings.TrimSuffix(text, ".")
	}
	var p *Problem
	switch {
	case kind == RewriteExact:
		_, p = parseName(text)
	case part == "" && text != "":
		p = problem("the end of every name", "")
	case part == "" && mayBeEmpty:
	case part == "":
		p = problem("the part of every name", "write the beginning or the end of those that are meant")
	case kind == RewritePrefix && part == ".":
		p = problem("the beginning of no name", "")
	default:
		p = partProblem(kind, part)
	}
	if p != nil {
		d.add(Problem{Path: path, What: quote(text) + ": " + p.What, Hint: p.Hint})
	}
	return strings.ToLower(part)
}

// partProblem says what keeps a text from being the beginning or the end of a name: made a whole one with a letter, it
// has to be one.
func partProblem(kind RewriteKind, part string) *Problem {
	if strings.Trim(part, ".") == "" {
		return problem("not a part of a name: an empty label", "write one dot between labels")
	}
	whole := part + "x"
	if kind == RewriteSuffix || strings.HasSuffix(part, "-") {
		whole = part
	}
	if kind == RewriteSuffix && strings.HasPrefix(part, ".") {
		whole = "x" + part
	}
	_, p := parseName(whole)
	if p != nil {
		p.What = strings.Replace(p.What, "not a name", "not a part of a name", 1)
	}
	return p
}

// checkRewrites reports rules that never apply.
func checkRewrites(d *decoder, rules []Rewrite) {
	seen := map[Rewrite]string{}
	for i, r := range rules {
		path, at := "rewrite["+strconv.Itoa(i)+"]", Rewrite{Kind: r.Kind, From: r.From}
		if !d.clean(path) {
			continue
		}
		if first, again := seen[at]; again {
			d.add(Problem{
				Path: path + "." + r.Kind.String(), What: quote(r.From) + ": already at " + first,
				Hint: "the first rule that fits is taken: leave out one of them",
			})
			continue
		}
		seen[at] = path
	}
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
	if _, err := parseRecord(text); err != nil {
		return "", problem("not a template: "+strings.TrimPrefix(err.Error(), "template: record:1: "), recordHint)
	}
	return text, nil
}

// checkTemplates tries the records of templates with questions that are made up, and reports those that give none.
func checkTemplates(d *decoder, templates []Template) {
	for i := range templates {
		t, path := &templates[i], fmt.Sprintf("templates[%d]", i)
		if !d.clean(path) {
			continue
		}
		questions := samples(t)
		for key, texts := range map[string][]string{"answer": t.Answer, "authority": t.Authority, "additional": t.Additional} {
			for j, text := range texts {
				if err := tryRecord(text, questions); err != nil {
					d.add(Problem{Path: fmt.Sprintf("%s.%s[%d]", path, key, j), What: quote(text) + ": no record: " + err.Error(), Hint: recordHint})
				}
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

// What the text of a [Template] may make. Without bounds a line of actions that double a text fills the memory.
const (
	maxActions    = 256     // in a record
	maxActionText = 8 << 10 // that one of them makes, in bytes
	maxDigits     = 3       // of a width or a precision
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

// bounded refuses to make a long text of long ones, which it does not make first.
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

// boundedPrintf is Sprintf. A verb can ask for more than its argument has, and for the same argument again.
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
		default: // the letter
			isVerb, digits = false, 0
		}
	}
	const widest, escaped = 1000, 4 // characters of a byte
	if len(format) > maxActionText || verbs*(widest+escaped*textSize(args)) > 64*maxActionText {
		return "", errActionText
	}
	return bounded(func(...any) string { return fmt.Sprintf(format, args...) })()
}

// textSize is about how long the texts of values are, in bytes. All but strings are parts of a question.
func textSize(args []any) int {
	size := len(args)
	for _, arg := range args {
		if text, is := arg.(string); is {
			size += len(text)
		}
	}
	return size
}
