// SPDX-License-Identifier: Apache-2.0

package blocklist

import (
	"net/netip"
	"regexp"
	"strings"

	"github.com/miekg/dns"
)

// A slowParser reads a list as text. It is the oracle of FuzzParse.
type slowParser struct {
	rules        map[string]bool // in the form of rules.text
	zone, origin string          // lower-case, with a dot at the end; empty: not known
	hasSOA       bool
	nested       int
}

// parseSlowly returns the rules of a list, and the number of lines that are skipped.
func parseSlowly(text string) (rules map[string]bool, bad int) {
	p := slowParser{rules: map[string]bool{}}
	for line := range strings.SplitSeq(strings.TrimPrefix(text, "\ufeff"), "\n") {
		if len(line) >= maxLine || !p.line(line) {
			bad++
		}
	}
	if p.nested > 0 {
		bad++
	}
	return p.rules, bad
}

// line reports whether a line is used, or is of no use by intent.
func (p *slowParser) line(line string) bool {
	line = regexp.MustCompile(`(^|[ \t\r])[#;][^\n]*`).ReplaceAllString(line, "$1")
	line = regexp.MustCompile(`\.;.*`).ReplaceAllString(line, ".")
	words := strings.FieldsFunc(line, func(c rune) bool { return c == ' ' || c == '\t' || c == '\r' })
	isIndented := strings.HasPrefix(line, " ") || strings.HasPrefix(line, "\t")
	switch {
	case p.nested > 0:
		p.nested--
		if strings.Contains(line, ")") {
			p.nested = 0
			return true
		}
		return p.nested > 0
	case len(words) == 0, words[0][0] == '!':
		return true
	case words[0][0] == '$':
		return p.directive(words)
	case len(words) == 1:
		rest, isBelow := strings.CutPrefix(words[0], "*.")
		return p.rule(rest, "", isBelow)
	}
	if addr, err := netip.ParseAddr(words[0]); err == nil {
		return p.hosts(addr, words[1:])
	}
	if rrtype, data, ok := slowRecord(words); ok && isIndented && len(data) > 0 {
		return p.record("", rrtype, data)
	}
	if rrtype, data, ok := slowRecord(words[1:]); ok {
		return p.record(words[0], rrtype, data)
	}
	return false
}

// slowRecord splits the words of a record behind its owner.
func slowRecord(words []string) (rrtype string, data []string, ok bool) {
	for n := 0; n < 2 && len(words) > 0 && regexp.MustCompile(`^(?i:[0-9][0-9smhdw]*|IN)$`).MatchString(words[0]); n++ {
		words = words[1:]
	}
	if len(words) == 0 {
		return "", nil, false
	}
	rrtype = strings.ToUpper(words[0])
	return rrtype, words[1:], dns.StringToType[rrtype] != 0
}

// slowName returns a valid name in lower case with a dot at the end. The root is ".".
func slowName(text string) (name string, ok bool) {
	if text == "." {
		return text, true
	}
	name = strings.Map(func(c rune) rune {
		if 'A' <= c && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return c
	}, strings.TrimSuffix(text, ".")+".")
	return name, len(name) < 255 && regexp.MustCompile(`^([a-z0-9_-]{1,63}\.)+$`).MatchString(name)
}

// rule adds a rule for a name that is not relative to a zone.
func (p *slowParser) rule(text, prefix string, isBelow bool) bool {
	name, ok := slowName(text)
	labels := strings.Split(strings.TrimSuffix(name, "."), ".")
	if !ok || name == "." || len(labels) == 1 && !isBelow || strings.Trim(labels[len(labels)-1], "0123456789") == "" {
		return false
	}
	if isBelow {
		prefix += "*."
	}
	p.rules[prefix+name] = true
	return true
}

func (p *slowParser) hosts(addr netip.Addr, names []string) bool {
	good := true
	addr = addr.WithZone("").Unmap()
	for _, name := range names {
		if _, err := netip.ParseAddr(name); err == nil || !strings.Contains(name, ".") || strings.EqualFold(name, "localhost.localdomain") {
			continue
		}
		rest, isBelow := strings.CutPrefix(name, "*.")
		good = (addr.IsLoopback() || addr.IsUnspecified()) && p.rule(rest, "", isBelow) && good
	}
	return good
}

func (p *slowParser) directive(words []string) bool {
	switch strings.ToUpper(words[0]) {
	case "$TTL":
		return true
	case "$ORIGIN":
		if len(words) != 2 || !strings.HasSuffix(words[1], ".") {
			return false
		}
		name, ok := slowName(words[1])
		if ok {
			if p.origin = name; p.zone == "" && !p.hasSOA {
				p.zone = name
			}
		}
		return ok
	}
	return false
}

// absolute returns an owner with the origin behind it, unless it ends with a dot.
func (p *slowParser) absolute(owner string) (string, bool) {
	name, ok := slowName(owner)
	if ok && p.origin != "" && p.origin != "." && !strings.HasSuffix(owner, ".") {
		name += p.origin
	}
	return name, ok && len(name) < 255
}

func (p *slowParser) record(owner, rrtype string, data []string) bool {
	isApex := owner == "" || owner == "@"
	switch {
	case rrtype == "SOA":
		p.hasSOA = true
		if p.zone = p.origin; !isApex {
			name, ok := p.absolute(owner)
			if p.zone = name; !ok {
				p.zone = ""
				return false
			}
		}
		if text := strings.Join(data, ""); strings.Contains(text, "(") && !strings.Contains(text, ")") {
			p.nested = maxNested
		}
		return true
	case rrtype == "NS":
		name, ok := p.absolute(owner)
		return isApex || ok && p.zone != "" && name == p.zone
	case rrtype != "CNAME" || len(data) != 1 || owner == "":
		return false
	}
	prefix := ""
	if strings.EqualFold(data[0], "rpz-passthru.") {
		prefix = "+"
	} else if data[0] != "." {
		return false
	}
	rest, isBelow := strings.CutPrefix(owner, "*.")
	name, ok := p.relative(rest)
	labels := strings.Split(strings.TrimSuffix(name, "."), ".")
	return ok && !strings.HasPrefix(labels[len(labels)-1], "rpz-") && p.rule(name, prefix, isBelow)
}

// relative returns the name that an owner has within the zone.
func (p *slowParser) relative(owner string) (string, bool) {
	isAbsolute := strings.HasSuffix(owner, ".")
	switch {
	case p.zone == "" && isAbsolute && p.hasSOA:
		return "", false
	case p.zone == "", !isAbsolute && (p.origin == "" || p.origin == p.zone):
		return slowName(owner)
	}
	name, ok := p.absolute(owner)
	if !ok {
		return "", false
	}
	if p.zone == "." {
		return name, true
	}
	if name == p.zone {
		return ".", true
	}
	name, ok = strings.CutSuffix(name, "."+p.zone)
	return name + ".", ok
}
