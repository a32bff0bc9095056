// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// Probe is a question that is asked again and again, to see who answers it and how fast. [DefaultProbe] has the value of
// every absent key.
type Probe struct {
	Label    string        // 1 to 32 of a-z, 0-9 and -, a letter or a digit at both ends, each once
	Server   string        // an address and a port, asked over UDP, or with tcp:// before it over TCP; empty, the default: the program's own first address
	Name     string        // lower-case and absolute
	Type     uint16        // default 1, A
	Interval time.Duration // from one question to the next, 1s..1h; default 5s
	Timeout  time.Duration // for the answer, 10ms..1m and at most Interval; default 1s
}

// DefaultProbe returns the probe of a label and a name, which must be lower-case and absolute, with every other key at
// its default.
func DefaultProbe(label, name string) Probe {
	return Probe{Label: label, Name: name, Type: 1, Interval: 5 * time.Second, Timeout: time.Second}
}

// Handover sets the socket for the handover between agents.
type Handover struct {
	Socket string // path of a unix socket, absolute, at most 107 bytes; default empty: no handover
}

// The bounds on probes: each is a set of series.
const (
	maxProbes     = 32
	maxProbeLabel = 32
)

// probes reads the list of probes.
func probes(dst *[]Probe) func(node) {
	return func(n node) {
		items, ok := n.items()
		if !ok {
			return
		}
		if len(items) > maxProbes {
			n.report.add(Problem{Path: n.path, What: fmt.Sprintf("%d probes: not more than %d", len(items), maxProbes)})
			return
		}
		var list []Probe
		seen := map[string]string{}
		for _, item := range items {
			p := DefaultProbe("", "")
			if !item.fields(probeFields(&p)) {
				continue
			}
			item.checkProbe(&p)
			if first, again := seen[p.Label]; again && p.Label != "" {
				n.report.add(Problem{Path: item.child("label"), What: quote(p.Label) + ": already at " + first})
			}
			seen[p.Label] = item.path
			list = append(list, p)
		}
		*dst = list
	}
}

// checkProbe reports what is missing, and a probe that would still wait when it is due again.
func (n node) checkProbe(p *Probe) {
	missing := func(key, value, hint string) {
		if value == "" && n.report.clean(n.child(key)) {
			n.report.add(Problem{Path: n.child(key), What: "missing", Hint: hint})
		}
	}
	missing("label", p.Label, "it names the series and the page of the probe, like cluster")
	missing("name", p.Name, "say what is asked for, like kubernetes.default.svc.cluster.local")
	checkOrder(n.report, n.child("timeout"), n.child("interval"), p.Timeout, p.Interval, formatDuration)
}

func probeLabel(dst *string) func(node) {
	return func(n node) {
		text, ok := n.stringOnly()
		switch {
		case !ok:
		case len(text) > maxProbeLabel, !isLabel(text):
			n.reject("not a label", fmt.Sprintf("lower-case letters, digits and -, a letter or a digit at both ends, %d bytes at most", maxProbeLabel))
		default:
			*dst = text
		}
	}
}

func probeName(dst *string) func(node) {
	return func(n node) {
		text, ok := n.stringOnly()
		if !ok {
			return
		}
		name, f := ".", flaw{}
		if text != "." { // which every resolver knows the servers of
			name, f = parseName(text)
		}
		if n.rejectFlaw(f) {
			*dst = name
		}
	}
}

// probeServer reads an address with or without a port, with udp:// or tcp:// before it or neither. The empty string is
// the program itself.
func probeServer(dst *string) func(node) {
	return func(n node) {
		text, ok := n.stringOnly()
		if !ok {
			return
		}
		if text == "" {
			*dst = ""
			return
		}
		t, f := parseTarget(text)
		switch {
		case f.what != "":
		case t.Kind == ResolvConf:
			f = flaw{what: "a path", hint: "write the address of a server"}
		case t.Kind != Plain && t.Kind != TCP:
			f = flaw{what: "not asked over UDP or TCP", hint: "a probe asks as a client would: write its address alone, or tcp:// before it"}
		case t.Addr.Addr().Zone() != "" && strings.ContainsAny(t.Addr.Addr().Zone(), "/#"):
			f = flaw{what: "an address with an odd zone"}
		}
		if n.rejectFlaw(f) {
			*dst = spellServer(t.Kind, t.Addr)
		}
	}
}

func spellServer(kind TargetKind, addr netip.AddrPort) string {
	if kind == TCP {
		return "tcp://" + addr.String()
	}
	return addr.String()
}

// questionType reads the type of a question.
func questionType(dst *uint16) func(node) {
	return func(n node) {
		if t, ok := n.questionType(); ok {
			*dst = t
		}
	}
}

// questionType returns the value of n when it is the type of records that can be asked for, and reports anything else.
func (n node) questionType() (uint16, bool) {
	text, ok := n.stringOnly()
	if !ok {
		return 0, false
	}
	word := strings.ToUpper(text)
	t, known := dns.StringToType[word]
	if number, found := strings.CutPrefix(word, "TYPE"); !known && found { // RFC 3597
		var value int
		if _, err := fmt.Sscanf(number, "%d", &value); err == nil && value > 0 && value < 1<<16 && isDigits(number) {
			t, known = uint16(value), true
		}
	}
	switch {
	case !known, t == 0, t == dns.TypeOPT, t >= 128 && t < 256, t == dns.TypeReserved: // RFC 6895 section 3.1
		n.reject("not the type of a record", "write it like A, AAAA or TYPE65")
	default:
		return t, true
	}
	return 0, false
}

// spellType is the inverse of questionType.
func spellType(t uint16) string { return dns.Type(t).String() }
