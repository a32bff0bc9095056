// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// A replay is a scenario of unbound's own tests. Its file has the configuration, and steps that are events of clients and
// upstreams; unbound's testcode/replay.h and testcode/testpkts.h describe the format.
type replay struct {
	options []option
	ranges  []replayRange
	steps   []step
}

// An option of unbound.conf, with the section that has it. Each section begins with the option `section`.
type option struct{ section, key, value string }

// A replayRange is what upstreams answer while the replay is between two steps.
type replayRange struct {
	from, to int
	address  string // empty: every upstream
	entries  []entry
}

// A step is an event, or a check of one.
type step struct {
	number  int
	event   string
	address string        // of the client, or of the upstream; empty: any
	elapse  time.Duration // of TIME_PASSES
	entry   *entry        // nil: none
}

// An entry is a message, and what of it must match another.
type entry struct {
	match  []string
	adjust []string
	msg    *dns.Msg // with an OPT record if the entry has flag DO or bytes of EDNS
}

// sections of unbound.conf. Other words with a colon at the end are options.
var sections = strings.Fields("server: stub-zone: forward-zone: auth-zone: rpz: view: python: remote-control: dynlib:")

// errNotReadable says that a file uses a part of the format that this reader leaves out.
var errNotReadable = errors.New("not readable here")

// replayParser reads a file line by line.
type replayParser struct {
	lines []string
	at    int // of the next line
	r     replay
}

// parseReplay returns what it has read before an error, too.
func parseReplay(text string) (*replay, error) {
	p := replayParser{lines: strings.Split(text, "\n")}
	err := p.config()
	for err == nil && p.at < len(p.lines) {
		words := p.next()
		switch {
		case len(words) == 0:
		case words[0] == "RANGE_BEGIN":
			err = p.answers(words)
		case words[0] == "STEP":
			err = p.step(words)
		case words[0] == "SCENARIO_END":
			return &p.r, nil
		}
	}
	if err == nil {
		err = errors.New("no SCENARIO_END")
	}
	return &p.r, fmt.Errorf("line %d: %w", p.at, err)
}

// next returns the words of the next line, without its remark.
func (p *replayParser) next() []string {
	line, _, _ := strings.Cut(p.lines[p.at], ";")
	p.at++
	return strings.Fields(line)
}

// config reads the part before CONFIG_END. A file that is part of it becomes an option of section "file".
func (p *replayParser) config() error {
	section := ""
	for p.at < len(p.lines) {
		line := p.lines[p.at]
		p.at++
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		switch words[0] {
		case "CONFIG_END":
			return nil
		case "AUTOTRUST_FILE", "TEMPFILE_CONTENTS":
			p.r.options = append(p.r.options, option{"file", words[0], words[1]})
			for p.at < len(p.lines) && !strings.HasSuffix(p.lines[p.at-1], "_END") {
				p.at++
			}
			continue
		case "COMMANDLINE", "TEMPFILE_NAME":
			p.r.options = append(p.r.options, option{"file", words[0], words[1]})
			continue
		}
		for _, word := range configWords(line) {
			last := len(p.r.options) - 1
			switch {
			case slices.Contains(sections, word):
				section = strings.TrimSuffix(word, ":")
				p.r.options = append(p.r.options, option{section, "section", ""})
			case strings.HasSuffix(word, ":"):
				p.r.options = append(p.r.options, option{section, strings.TrimSuffix(word, ":"), ""})
			case last >= 0:
				p.r.options[last].value = strings.TrimSpace(p.r.options[last].value + " " + unquoted(word))
			}
		}
	}
	return errors.New("no CONFIG_END")
}

func unquoted(word string) string {
	if n := len(word); n > 1 && word[0] == word[n-1] && (word[0] == '"' || word[0] == '\'') {
		return word[1 : n-1]
	}
	return word
}

// configWords splits a line of unbound.conf. A text in quotes is one word, with its quotes; ';' begins a remark too.
func configWords(line string) (words []string) {
	for line = strings.TrimSpace(line); line != "" && line[0] != '#' && line[0] != ';'; line = strings.TrimSpace(line) {
		n := strings.IndexAny(line, " \t")
		if quote := line[:1]; quote == `"` || quote == "'" {
			n = strings.Index(line[1:], quote) + 2
		}
		if n < 2 && n != 1 {
			n = len(line)
		}
		words = append(words, line[:n])
		line = line[n:]
	}
	return words
}

// answers reads a range.
func (p *replayParser) answers(words []string) error {
	var r replayRange
	var err error
	if len(words) < 3 {
		return errors.New("a range without steps")
	}
	if r.from, err = strconv.Atoi(words[1]); err != nil {
		return err
	}
	if r.to, err = strconv.Atoi(words[2]); err != nil {
		return err
	}
	for p.at < len(p.lines) {
		words := p.next()
		switch {
		case len(words) == 0:
		case words[0] == "ADDRESS" && len(words) > 1:
			r.address = words[1]
		case words[0] == "ENTRY_BEGIN":
			e, err := p.entry()
			if err != nil {
				return err
			}
			r.entries = append(r.entries, *e)
		case words[0] == "RANGE_END":
			p.r.ranges = append(p.r.ranges, r)
			return nil
		}
	}
	return errors.New("no RANGE_END")
}

// step reads a step with its entry, if it has one.
func (p *replayParser) step(words []string) error {
	if len(words) < 3 {
		return errors.New("a step without an event")
	}
	s := step{event: words[2]}
	var err error
	if s.number, err = strconv.Atoi(words[1]); err != nil {
		return err
	}
	for i := 3; i+1 < len(words); i++ {
		switch words[i] {
		case "ADDRESS":
			s.address = words[i+1]
		case "ELAPSE":
			if s.elapse, err = time.ParseDuration(words[i+1] + "s"); err != nil {
				return err
			}
		case "EVAL":
			return fmt.Errorf("%w: a calculated time", errNotReadable)
		}
	}
	for p.at < len(p.lines) {
		before := p.at
		switch words := p.next(); {
		case len(words) == 0:
			continue
		case words[0] == "ENTRY_BEGIN":
			s.entry, err = p.entry()
		default:
			p.at = before
		}
		break
	}
	p.r.steps = append(p.r.steps, s)
	return err
}

// entry reads up to ENTRY_END.
func (p *replayParser) entry() (*entry, error) {
	e := entry{msg: new(dns.Msg)}
	section := ""
	var edns []byte // nil: no OPT record
	for p.at < len(p.lines) {
		line := strings.TrimSpace(p.lines[p.at])
		words := p.next()
		if len(words) == 0 {
			continue
		}
		var err error
		switch words[0] {
		case "ENTRY_END":
			if edns != nil {
				e.msg.SetEdns0(1232, slices.Contains(e.adjust, "DO"))
				e.msg.IsEdns0().Option, err = ednsOptions(edns)
			}
			return &e, err
		case "MATCH":
			e.match = append(e.match, words[1:]...)
		case "ADJUST":
			e.adjust = append(e.adjust, words[1:]...)
		case "REPLY":
			if err = e.header(words[1:]); slices.Contains(words, "DO") {
				edns = []byte{}
				e.adjust = append(e.adjust, "DO")
			}
		case "SECTION":
			section = words[1]
		case "HEX_EDNSDATA_BEGIN":
			edns, err = p.hex("HEX_EDNSDATA_END")
		case "HEX_ANSWER_BEGIN", "EXTRA_PACKET", "$ORIGIN", "$TTL":
			err = fmt.Errorf("%w: %s", errNotReadable, words[0])
		default:
			err = e.record(section, line)
		}
		if err != nil {
			return nil, err
		}
	}
	return nil, errors.New("no ENTRY_END")
}

// header reads opcode, rcode and flags.
func (e *entry) header(words []string) error {
	flags := map[string]*bool{
		"QR": &e.msg.Response, "AA": &e.msg.Authoritative, "TC": &e.msg.Truncated, "RD": &e.msg.RecursionDesired,
		"RA": &e.msg.RecursionAvailable, "AD": &e.msg.AuthenticatedData, "CD": &e.msg.CheckingDisabled, "DO": new(bool),
	}
	for _, word := range words {
		word = strings.ReplaceAll(word, "NOTIMPL", "NOTIMP")
		rcode, isRcode := dns.StringToRcode[word]
		opcode, isOpcode := dns.StringToOpcode[word]
		switch {
		case flags[word] != nil:
			*flags[word] = true
		case isRcode:
			e.msg.Rcode = rcode
		case isOpcode:
			e.msg.Opcode = opcode
		default:
			return fmt.Errorf("no such flag: %s", word)
		}
	}
	return nil
}

// record reads a question or a record.
func (e *entry) record(section, line string) error {
	if section == "QUESTION" {
		words := strings.Fields(line)
		q := dns.Question{Name: dns.Fqdn(words[0]), Qclass: dns.ClassINET}
		for _, word := range words[1:] { // a class, perhaps a TTL, a type
			if t, ok := dns.StringToType[word]; ok {
				q.Qtype = t
			} else if c, ok := dns.StringToClass[word]; ok {
				q.Qclass = c
			}
		}
		e.msg.Question = []dns.Question{q}
		return nil
	}
	to := map[string]*[]dns.RR{"ANSWER": &e.msg.Answer, "AUTHORITY": &e.msg.Ns, "ADDITIONAL": &e.msg.Extra}[section]
	if to == nil {
		return fmt.Errorf("%q is in no section", line)
	}
	rr, err := readRecord(line)
	if err != nil || rr == nil {
		return fmt.Errorf("%w: %w", errNotReadable, err)
	}
	*to = append(*to, rr)
	return nil
}

// readRecord reads a record in the notation of zone files. ANY is always a type there.
func readRecord(line string) (dns.RR, error) {
	return dns.NewRR(strings.ReplaceAll(line, " ANY TXT ", " CLASS255 TXT "))
}

// hex reads bytes up to a line.
func (p *replayParser) hex(end string) ([]byte, error) {
	text := ""
	for p.at < len(p.lines) {
		words := p.next()
		if len(words) > 0 && words[0] == end {
			b, err := hex.DecodeString(text)
			return append([]byte{}, b...), err
		}
		text += strings.Join(words, "")
	}
	return nil, errors.New("no " + end)
}

func ednsOptions(b []byte) (list []dns.EDNS0, err error) {
	for len(b) >= 4 {
		code, n := uint16(b[0])<<8|uint16(b[1]), int(b[2])<<8|int(b[3])
		if b = b[4:]; n > len(b) {
			break
		}
		list = append(list, &dns.EDNS0_LOCAL{Code: code, Data: b[:n]})
		b = b[n:]
	}
	if len(b) > 0 {
		err = errors.New("an option of EDNS is cut off")
	}
	return list, err
}
