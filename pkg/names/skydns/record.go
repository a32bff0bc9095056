// SPDX-License-Identifier: Apache-2.0

package skydns

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/wire"
)

// A value is the JSON object of a record.
type value struct {
	Host        string `json:"host"`
	Port        int    `json:"port"` // -1: no SRV record
	Priority    int    `json:"priority"`
	Weight      int    `json:"weight"`
	Text        string `json:"text"`
	Mail        bool   `json:"mail"`
	TTL         uint32 `json:"ttl"`
	TargetStrip int    `json:"targetstrip"` // number of first labels removed from the target of SRV, MX and NS records
	Group       string `json:"group"`
}

// A record is immutable.
type record struct {
	value

	key    string
	path   string     // labels of the name in lower case, the last first, each followed by a slash
	labels int        // number of labels in path
	addr   netip.Addr // Host as an address; invalid: Host is a name, or empty
}

const (
	maxValue = 64 << 10 // largest value in bytes; a TXT record holds about as much

	defaultPriority = 10
	defaultWeight   = 100
	defaultTTL      = 300 // seconds
	// maxLeasedTTL bounds the TTL of records with a lease, in seconds: a lease may end at any time.
	maxLeasedTTL = 30
	maxTTL       = 24 * 60 * 60 // seconds
)

// parseRecord parses the text of a value, and converts its host to lower case.
func parseRecord(key, path string, text []byte, leased bool) (*record, error) {
	r := &record{key: key, path: path, labels: strings.Count(path, "/")}
	if len(text) > maxValue {
		return nil, fmt.Errorf("%d bytes, more than %d", len(text), maxValue)
	}
	if err := json.Unmarshal(text, &r.value); err != nil {
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

// isHostName reports whether text, without the dot at its end, is a host name. A last label of digits only is
// refused: it is a mistyped address.
func isHostName(text string) bool {
	other := func(c rune) bool {
		return c != '.' && c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z')
	}
	last := text[strings.LastIndexByte(text, '.')+1:]
	_, ok := dns.IsDomainName(text)
	return ok && !strings.ContainsFunc(text, other) && strings.Trim(last, "0123456789") != ""
}

// isAlias reports whether the record's host is the target of a CNAME record at its name. The record may have a text too, for a TXT
// record at that name: external-dns writes both into one value.
func (r *record) isAlias() bool { return r.Host != "" && !r.addr.IsValid() }

// isAddress reports whether the record is an address record of its name of type qtype.
func (r *record) isAddress(qtype uint16) bool {
	return r.addr.IsValid() && (qtype == wire.TypeA && r.addr.Is4() || qtype == wire.TypeAAAA && !r.addr.Is4())
}

// weight returns the weight of the SRV record.
func (r *record) weight() int {
	if r.Weight == 0 {
		return defaultWeight
	}
	return r.Weight
}

// appendTarget appends the name that SRV, MX and NS records point to: the host, or for an address the name of the record.
// TargetStrip removes labels if some remain.
func (r *record) appendTarget(dst []byte) []byte {
	if r.addr.IsValid() {
		return appendPath(dst, r.path, r.labels, r.TargetStrip)
	}
	return appendHost(dst, r.Host, r.TargetStrip)
}

// appendAddress appends the RDATA of the address record.
func (r *record) appendAddress(dst []byte) []byte {
	all := r.addr.As16()
	if r.addr.Is4() {
		return append(dst, all[12:]...)
	}
	return append(dst, all[:]...)
}

// appendText appends the RDATA of the TXT record.
func (r *record) appendText(dst []byte) []byte {
	for rest := r.Text; rest != ""; {
		n := min(len(rest), 255)
		dst = append(append(dst, byte(n)), rest[:n]...)
		rest = rest[n:]
	}
	return dst
}
