// SPDX-License-Identifier: Apache-2.0

package skydns

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// message is the JSON of a record.
type message struct {
	Host        string `json:"host"`
	Port        int    `json:"port"` // -1: no SRV record
	Priority    int    `json:"priority"`
	Weight      int    `json:"weight"`
	Text        string `json:"text"`
	Mail        bool   `json:"mail"`
	TTL         uint32 `json:"ttl"`
	TargetStrip int    `json:"targetstrip"` // labels of its name that the target of an SRV, MX or NS record lacks
	Group       string `json:"group"`
}

// A record is immutable.
type record struct {
	message

	key  string
	path string     // labels of the name in lower case, the last first, each followed by a slash
	addr netip.Addr // Host as an address; invalid: it is a name
}

const (
	maxValue = 64 << 10 // bytes of a value. A TXT record has room for as much

	defaultPriority = 10
	defaultTTL      = 300
	// maxLeasedTTL is for records that end with a lease, because that may be at any time.
	maxLeasedTTL = 30
	maxTTL       = 24 * 60 * 60
)

// parseRecord reads a value. The host of a record is in lower case.
func parseRecord(key, path string, value []byte, leased bool) (*record, error) {
	r := &record{key: key, path: path}
	if len(value) > maxValue {
		return nil, fmt.Errorf("%d bytes, more than %d", len(value), maxValue)
	}
	if err := json.Unmarshal(value, &r.message); err != nil {
		return nil, fmt.Errorf("parsing the value: %w", err)
	}
	for _, number := range []struct {
		name               string
		value, least, most int
	}{
		{"port", r.Port, -1, 65535},
		{"priority", r.Priority, 0, 65535},
		{"weight", r.Weight, 0, 65535},
		{"targetstrip", r.TargetStrip, 0, 127},
	} {
		if number.value < number.least || number.value > number.most {
			return nil, fmt.Errorf("%s %d is not between %d and %d", number.name, number.value, number.least, number.most)
		}
	}
	r.Host = strings.ToLower(strings.TrimSuffix(r.Host, "."))
	if addr, err := netip.ParseAddr(r.Host); err == nil && addr.Zone() == "" {
		r.addr = addr.Unmap()
	} else if r.Host != "" && !isHostName(r.Host) {
		return nil, fmt.Errorf("host %.80q is neither an address nor a name", r.Host)
	}
	if r.Priority == 0 {
		r.Priority = defaultPriority
	}
	if r.TTL == 0 {
		r.TTL = defaultTTL
	}
	if r.TTL = min(r.TTL, maxTTL); leased {
		r.TTL = min(r.TTL, maxLeasedTTL)
	}
	return r, nil
}

// isHostName reports whether text, without the dot at its end, is the name of a host. A number as the last label is not:
// it is an address with a mistake.
func isHostName(text string) bool {
	other := func(c rune) bool {
		return c != '.' && c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z')
	}
	last := text[strings.LastIndexByte(text, '.')+1:]
	_, ok := dns.IsDomainName(text)
	return ok && !strings.ContainsFunc(text, other) && strings.Trim(last, "0123456789") != ""
}

// The three kinds of records exclude each other.

// isAlias reports whether the record is a CNAME record of its name.
func (r *record) isAlias() bool { return !r.addr.IsValid() && r.Host != "" && r.Text == "" }

// isText reports whether the record is a TXT record of its name.
func (r *record) isText() bool { return !r.addr.IsValid() && r.Text != "" }

// isAddress reports whether the record is an address record of its name of type qtype, or with dns.TypeNone of any.
func (r *record) isAddress(qtype uint16) bool {
	return r.addr.IsValid() && (qtype == dns.TypeNone || (qtype == dns.TypeA) == r.addr.Is4())
}

// target returns the name that SRV, MX and NS records point to: the host, or for an address the name of the record.
// TargetStrip removes labels if some remain.
func (r *record) target() string {
	name := r.Host + "."
	if r.addr.IsValid() {
		name = nameOf(r.path)
	}
	if starts := dns.Split(name); r.TargetStrip < len(starts) {
		return name[starts[r.TargetStrip]:]
	}
	return name
}

// address returns the address record for an owner.
func (r *record) address(owner string) dns.RR {
	if r.addr.Is4() {
		return &dns.A{Hdr: r.header(owner, dns.TypeA), A: r.addr.AsSlice()}
	}
	return &dns.AAAA{Hdr: r.header(owner, dns.TypeAAAA), AAAA: r.addr.AsSlice()}
}

// txt returns the TXT record for an owner.
func (r *record) txt(owner string) dns.RR {
	rr := &dns.TXT{Hdr: r.header(owner, dns.TypeTXT)}
	for rest := r.Text; rest != ""; {
		n := min(len(rest), 255)
		rr.Txt = append(rr.Txt, strings.ReplaceAll(rest[:n], `\`, `\\`)) // package dns unescapes it
		rest = rest[n:]
	}
	return rr
}

func (r *record) header(owner string, rrtype uint16) dns.RR_Header {
	return dns.RR_Header{Name: owner, Rrtype: rrtype, Class: dns.ClassINET, Ttl: r.TTL}
}
