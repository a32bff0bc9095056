// SPDX-License-Identifier: Apache-2.0

package blocklist

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	maxLine   = 64 << 10 // bytes of a line; a longer one is skipped
	maxNested = 16       // lines of a record in parentheses, so that a parenthesis without its end hides no more
)

var (
	errNothing = errors.New("no line can be used")
	errRoom    = errors.New("the lists need more than 64 MiB") // maxBytes
)

// A parser reads the lines of one list.
type parser struct {
	*rules

	limit       int64 // most bytes of the rules
	exceptions  int   // rules that are exceptions
	lines       int   // lines read
	skipped     int   // lines that are not understood
	unsupported int   // records of RPZ that are not supported
	firstBad    int   // number of the first line in skipped, else in unsupported, from 1; 0: none
	full        bool  // the rules exceed limit

	zone, origin []byte // canonical names from SOA and $ORIGIN; nil: not known
	hasSOA       bool
	nested       int // lines left of a record in parentheses; 0: in none
	room, room2  []byte
}

// parse reads a list. The rules take at most limit bytes.
func parse(from io.Reader, limit int64) (*parser, error) {
	p := &parser{rules: newRules(), limit: limit}
	lines := bufio.NewReaderSize(from, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		p.lines++
		if p.lines == 1 {
			line = bytes.TrimPrefix(line, []byte("\ufeff")) // the byte order mark, with which some editors begin a file
		}
		long := false
		for ; errors.Is(err, bufio.ErrBufferFull); _, err = lines.ReadSlice('\n') {
			long = true
		}
		if long {
			p.skip(&p.skipped)
		} else {
			p.parseLine(line)
		}
		switch {
		case p.full:
			return nil, fmt.Errorf("line %d: %w", p.lines, errRoom)
		case errors.Is(err, io.EOF):
			if p.nested > 0 {
				p.skip(&p.skipped)
			}
			if p.names == 0 && p.skipped+p.unsupported > 0 { // such as the page of a web server that a download got
				return nil, fmt.Errorf("%w, the first of %d is line %d", errNothing, p.skipped+p.unsupported, p.firstBad)
			}
			return p, nil
		case err != nil:
			return nil, err
		}
	}
}

// skip counts the current line, which is not used.
func (p *parser) skip(counter *int) {
	*counter++
	if p.firstBad == 0 || counter == &p.skipped && p.skipped == 1 {
		p.firstBad = p.lines
	}
}

// parseLine reads one line.
func (p *parser) parseLine(line []byte) {
	line = cutComment(line)
	var fields [8][]byte
	words := appendFields(fields[:0], line)
	switch {
	case p.nested > 0:
		if p.nested--; bytes.IndexByte(line, ')') >= 0 {
			p.nested = 0
		} else if p.nested == 0 {
			p.skip(&p.skipped)
		}
		return
	case len(words) == 0 || words[0][0] == '!': // "!" begins a comment in lists for browsers
		return
	case words[0][0] == '$':
		p.directive(words)
		return
	}
	owner, record := words[0], words[1:]
	if len(record) == 0 {
		if !p.addName(owner, blocksName) {
			p.skip(&p.skipped)
		}
		return
	}
	if addr, ok := parseAddr(owner); ok {
		p.hosts(addr, record)
		return
	}
	if line[0] == ' ' || line[0] == '\t' {
		if rrtype, data := typeOf(words); rrtype != 0 && len(data) > 0 { // a further record of the last owner
			p.record(nil, rrtype, data)
			return
		}
	}
	if rrtype, data := typeOf(record); rrtype != 0 {
		p.record(owner, rrtype, data)
		return
	}
	p.skip(&p.skipped)
}

// cutComment removes a comment. In lists for browsers "#" within a word is none: example.com##.banner is a rule about the page, and must
// not block example.com.
func cutComment(line []byte) []byte {
	for i, c := range line {
		switch {
		case c != '#' && c != ';':
		case i == 0, isSpace(line[i-1]), c == ';' && line[i-1] == '.':
			return line[:i]
		}
	}
	return line
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// parseAddr reads an address. It allocates nothing for names and for the addresses that lists have.
func parseAddr(word []byte) (netip.Addr, bool) {
	switch {
	case string(word) == "0.0.0.0":
		return netip.IPv4Unspecified(), true
	case bytes.IndexByte(word, ':') < 0 && !isDigit(word[len(word)-1]):
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(string(word))
	return addr, err == nil
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// appendFields is bytes.Fields for ASCII, without an allocation for few fields.
func appendFields(dst [][]byte, line []byte) [][]byte {
	for i := 0; i < len(line); {
		if isSpace(line[i]) {
			i++
			continue
		}
		start := i
		for i < len(line) && !isSpace(line[i]) {
			i++
		}
		dst = append(dst, line[start:i])
	}
	return dst
}

// typeOf returns the type of a record and its data: the words after TTL and class, which may be missing. It returns 0 if the words are
// no record.
func typeOf(words [][]byte) (rrtype uint16, data [][]byte) {
	for n := 0; n < 2 && len(words) > 0 && (isTTL(words[0]) || bytes.EqualFold(words[0], []byte("IN"))); n++ {
		words = words[1:]
	}
	switch {
	case len(words) == 0:
		return 0, nil
	case bytes.EqualFold(words[0], []byte("CNAME")):
		return dns.TypeCNAME, words[1:]
	}
	if len(words[0]) > 10 { // no type has a longer name
		return 0, nil
	}
	return dns.StringToType[string(bytes.ToUpper(words[0]))], words[1:]
}

// isTTL reports whether a word is a TTL: digits, and perhaps units such as in 1h30m.
func isTTL(word []byte) bool {
	return isDigit(word[0]) && len(bytes.Trim(bytes.ToLower(word), "0123456789smhdw")) == 0
}

// directive reads $TTL and $ORIGIN.
func (p *parser) directive(words [][]byte) {
	switch {
	case bytes.EqualFold(words[0], []byte("$TTL")):
		return
	case bytes.EqualFold(words[0], []byte("$ORIGIN")) && len(words) == 2 && bytes.HasSuffix(words[1], []byte(".")):
		if origin, ok := appendName(nil, words[1]); ok {
			p.origin = origin
			if p.zone == nil && !p.hasSOA {
				p.zone = origin
			}
			return
		}
	}
	p.skip(&p.skipped)
}

// hosts reads the names of a line in the format of hosts(5). Names that the files of all hosts have, and that are none of the Internet,
// are ignored.
func (p *parser) hosts(addr netip.Addr, names [][]byte) {
	addr = addr.WithZone("").Unmap()
	blocks := addr.IsUnspecified() || addr.IsLoopback() // another address is where the name is served, not a block
	good := true
	for _, name := range names {
		if !isLocal(name) && (!blocks || !p.addName(name, blocksName)) {
			good = false
		}
	}
	if !good {
		p.skip(&p.skipped)
	}
}

// isLocal reports whether a name has one label, or is an address or localhost.localdomain.
func isLocal(name []byte) bool {
	_, isAddr := parseAddr(name)
	return isAddr || bytes.IndexByte(name, '.') < 0 || bytes.EqualFold(name, []byte("localhost.localdomain"))
}

// addName adds a rule for a name in text, or for the names below it if it begins with an asterisk label. It returns false if there is no
// such rule.
func (p *parser) addName(text []byte, kind kinds) bool {
	rest, isBelow := bytes.CutPrefix(text, []byte("*."))
	name, ok := appendName(p.room[:0], rest)
	p.room = name
	return ok && p.addRule(name, kind, isBelow)
}

// addRule adds a rule of the kind blocksName or exceptsName, or with isBelow of its counterpart. It refuses the root, all of whose names
// a list would block by one character too few, single labels, which are names of hosts on a local network, and numbers as the last label,
// which are addresses.
func (p *parser) addRule(name []byte, kind kinds, isBelow bool) bool {
	last, labels := name, 0
	for rest := name; len(rest) > 1; rest = rest[1+int(rest[0]):] {
		last = rest
		labels++
	}
	if labels == 0 || labels == 1 && !isBelow || len(bytes.Trim(last[1:len(last)-1], "0123456789")) == 0 {
		return false
	}
	if isBelow {
		kind <<= 1
	}
	if kind&excepts != 0 {
		p.exceptions++
	}
	p.full = !p.add(name, kind, p.limit) || p.full
	return true
}

// appendName appends the canonical wire form of a name of letters, digits, '-' and '_', with or without the final dot. It returns false
// for other text. A list has internationalized names as punycode.
func appendName(dst, text []byte) ([]byte, bool) {
	if len(text) == 1 && text[0] == '.' {
		return append(dst, 0), true
	}
	text = bytes.TrimSuffix(text, []byte("."))
	start := len(dst)
	for label := -1; ; {
		if label < 0 {
			label = len(dst)
			dst = append(dst, 0)
		}
		end := bytes.IndexByte(text, '.')
		part := text
		if end >= 0 {
			part = text[:end]
		}
		if len(part) == 0 || len(part) > wire.MaxLabel || len(dst)-start+len(part) >= wire.MaxName {
			return dst[:start], false
		}
		for _, c := range part {
			switch {
			case 'A' <= c && c <= 'Z':
				c |= 0x20
			case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
			default:
				return dst[:start], false
			}
			dst = append(dst, c)
		}
		dst[label] = byte(len(part))
		if end < 0 {
			return append(dst, 0), true
		}
		text, label = text[end+1:], -1
	}
}

// record reads a record of a response policy zone. owner is nil for that of the record before.
func (p *parser) record(owner []byte, rrtype uint16, data [][]byte) {
	isApex := owner == nil || len(owner) == 1 && owner[0] == '@'
	switch rrtype {
	case dns.TypeSOA:
		p.hasSOA = true
		if p.zone = p.origin; !isApex {
			zone, ok := p.absolute(nil, owner)
			if p.zone = zone; !ok {
				p.zone = nil
				break
			}
		}
		if open := bytes.Join(data, nil); bytes.IndexByte(open, '(') >= 0 && bytes.IndexByte(open, ')') < 0 {
			p.nested = maxNested
		}
		return
	case dns.TypeNS:
		if isApex || p.isZone(owner) {
			return
		}
	case dns.TypeCNAME:
		if owner != nil && len(data) == 1 {
			p.policy(owner, data[0])
			return
		}
	}
	p.skip(&p.unsupported)
}

// policy reads a CNAME record: a rule.
func (p *parser) policy(owner, action []byte) {
	kind := blocksName
	switch {
	case len(action) == 1 && action[0] == '.':
	case bytes.EqualFold(action, []byte("rpz-passthru.")):
		kind = exceptsName
	default:
		p.skip(&p.unsupported)
		return
	}
	rest, isBelow := bytes.CutPrefix(owner, []byte("*."))
	name, ok := p.relative(rest)
	switch {
	case ok && isTrigger(name):
		p.skip(&p.unsupported)
	case !ok || !p.addRule(name, kind, isBelow):
		p.skip(&p.skipped)
	}
}

// isTrigger reports whether a name stands for another trigger than a query name: its last label is rpz-ip, rpz-client-ip, rpz-nsdname or
// rpz-nsip.
func isTrigger(name []byte) bool {
	for len(name) > 1 {
		label := name[1 : 1+name[0]]
		if name = name[1+len(label):]; len(name) == 1 {
			return bytes.HasPrefix(label, []byte("rpz-"))
		}
	}
	return false
}

// absolute appends the name that an owner stands for: with the origin behind it, unless it ends with a dot.
func (p *parser) absolute(dst, owner []byte) ([]byte, bool) {
	name, ok := appendName(dst, owner)
	if ok && p.origin != nil && !bytes.HasSuffix(owner, []byte(".")) {
		name = append(name[:len(name)-1], p.origin...)
		ok = len(name)-len(dst) <= wire.MaxName
	}
	return name, ok
}

// relative returns the name that an owner has within the zone: the name that a rule is for. It is valid until the next call.
func (p *parser) relative(owner []byte) ([]byte, bool) {
	isAbsolute := bytes.HasSuffix(owner, []byte("."))
	switch {
	case p.zone == nil && isAbsolute && p.hasSOA:
		return nil, false // the zone that the name ends with is not known
	case p.zone == nil, !isAbsolute && bytes.Equal(p.zone, p.origin):
		name, ok := appendName(p.room[:0], owner)
		p.room = name
		return name, ok
	}
	name, ok := p.absolute(p.room2[:0], owner)
	p.room2 = name
	if !ok || p.origin == nil && !isAbsolute { // a relative owner of a zone that begins with an absolute one
		return name, ok && p.origin == nil && !isAbsolute
	}
	for at := 0; at < len(name); at += 1 + int(name[at]) {
		if bytes.Equal(name[at:], p.zone) {
			p.room = append(append(p.room[:0], name[:at]...), 0)
			return p.room, true
		}
	}
	return nil, false
}

// isZone reports whether an owner is the zone itself.
func (p *parser) isZone(owner []byte) bool {
	name, ok := p.absolute(p.room2[:0], owner)
	p.room2 = name
	return ok && p.zone != nil && bytes.Equal(name, p.zone)
}
