// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/cache"
)

// A CacheView is what the cache holds, as /cache/get and /cache/top tell it.
type CacheView struct {
	Entries []CacheEntry `json:"entries"`
}

// A CacheEntry is one entry of the cache.
type CacheEntry struct {
	Name    string   `json:"name"`
	Type    string   `json:"type"`             // "*": all of them, because the name does not exist
	Flags   []string `json:"flags,omitempty"`  // "DO", "CD": of those who ask for it
	Subnet  string   `json:"subnet,omitempty"` // whose answer it is, where a route keeps them apart
	State   string   `json:"state"`            // a cache.State in its word
	Rcode   string   `json:"rcode"`
	Age     int64    `json:"ageSeconds"`        // since it was stored
	Left    int64    `json:"leftSeconds"`       // of its time; negative: since it was over
	Hits    int      `json:"hits"`              // since it was stored; 65535: that many or more
	Bytes   int      `json:"bytes"`             // what it takes
	Records []string `json:"records,omitempty"` // in presentation form, with the TTLs of now; of /cache/get only
}

// A CacheFlushed is what /cache/flush did.
type CacheFlushed struct {
	Flushed int `json:"flushed"` // entries forgotten
}

// allTypes stands for the type of an entry that is of its name as a whole.
const allTypes = "*"

// cachePages are the functions of the pages that show the cache in use.
func (a *Agent) cachePages() *admin.Cache {
	return &admin.Cache{Get: a.cacheGet, Top: a.cacheTop, Flush: a.cacheFlush}
}

// cacheGet is what the cache in use holds of a name, of one type if it says which.
func (a *Agent) cacheGet(name, rrtype string) (any, error) {
	wireForm, err := givenName(name)
	if err != nil {
		return nil, err
	}
	var only uint16
	if rrtype != "" {
		if only, err = RecordType(rrtype); err != nil {
			return nil, err
		}
	}
	view := CacheView{Entries: []CacheEntry{}}
	held := a.running.Load().cache.Inspect(wireForm, time.Now())
	for i := range held {
		if e := &held[i]; only == 0 || e.Type == only || e.Type == 0 {
			view.Entries = append(view.Entries, viewOf(e))
		}
	}
	return view, nil
}

// cacheTop lists what ranks highest in the cache in use.
func (a *Agent) cacheTop(n int, by string) (any, error) {
	rank := cache.ByHits
	if by == "size" {
		rank = cache.BySize
	}
	top := a.running.Load().cache.Top(n, rank, time.Now())
	view := CacheView{Entries: make([]CacheEntry, 0, len(top))}
	for i := range top {
		view.Entries = append(view.Entries, viewOf(&top[i]))
	}
	return view, nil
}

// cacheFlush forgets in the cache in use.
func (a *Agent) cacheFlush(what admin.Flush) (any, error) {
	held := a.running.Load().cache
	var flushed int
	switch {
	case what.All:
		flushed = held.Flush([]byte{0})
	case what.Zone != "":
		zone, err := givenName(what.Zone)
		if err != nil {
			return nil, err
		}
		flushed = held.Flush(zone)
	default:
		name, err := givenName(what.Name)
		if err != nil {
			return nil, err
		}
		flushed = held.FlushName(name)
	}
	a.log.Info("cache flushed", "name", what.Name, "zone", what.Zone, "all", what.All, "entries", flushed)
	return CacheFlushed{Flushed: flushed}, nil
}

// givenName is a name that somebody typed, in canonical wire form.
func givenName(text string) ([]byte, error) {
	if _, ok := dns.IsDomainName(text); !ok {
		return nil, fmt.Errorf("%q: not a domain name", text)
	}
	name, err := wireName(dns.Fqdn(text))
	if err != nil {
		return nil, fmt.Errorf("%q: not a domain name", text)
	}
	return name, nil
}

// RecordType is the type that a text names: a mnemonic in any case, or TYPE and a
// number (RFC 3597 section 5).
func RecordType(text string) (uint16, error) {
	upper := strings.ToUpper(text)
	if t, known := dns.StringToType[upper]; known {
		return t, nil
	}
	if number, ok := strings.CutPrefix(upper, "TYPE"); ok {
		if n, err := strconv.ParseUint(number, 10, 16); err == nil && n > 0 {
			return uint16(n), nil
		}
	}
	return 0, fmt.Errorf("%q: not a record type", text)
}

// viewOf is an entry in words.
func viewOf(e *cache.Entry) CacheEntry {
	v := CacheEntry{
		Type: allTypes, Subnet: subnetText(e.Subnet), State: e.State.String(), Rcode: dns.RcodeToString[e.Rcode],
		Age: int64(e.Age / time.Second), Left: secondsLeft(e.Left), Hits: e.Hits, Bytes: e.Size,
	}
	v.Name, _, _ = dns.UnpackDomainName(e.Name, 0)
	if e.Type != 0 {
		v.Type = dns.Type(e.Type).String()
	}
	if e.DO {
		v.Flags = append(v.Flags, "DO")
	}
	if e.CD {
		v.Flags = append(v.Flags, "CD")
	}
	var m dns.Msg
	if len(e.Msg) > 0 && m.Unpack(e.Msg) == nil {
		for _, section := range [][]dns.RR{m.Answer, m.Ns, m.Extra} {
			for _, rr := range section {
				v.Records = append(v.Records, strings.ReplaceAll(rr.String(), "\t", " "))
			}
		}
	}
	return v
}

// secondsLeft counts a part of a second as a whole one, as the TTLs of the records do.
func secondsLeft(d time.Duration) int64 {
	if d > 0 {
		d += time.Second - 1
	}
	return int64(d / time.Second)
}

// subnetText is the client subnet of an option's data (RFC 7871 section 6), empty for none.
func subnetText(data []byte) string {
	if len(data) < 4 {
		return ""
	}
	var addr netip.Addr
	switch binary.BigEndian.Uint16(data) {
	case 1:
		var a [4]byte
		copy(a[:], data[4:])
		addr = netip.AddrFrom4(a)
	case 2:
		var a [16]byte
		copy(a[:], data[4:])
		addr = netip.AddrFrom16(a)
	default:
		return "none"
	}
	return netip.PrefixFrom(addr, int(data[2])).String()
}
