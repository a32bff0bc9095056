// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/retry"
	"github.com/nodecache/node-cache/pkg/upstream"
)

const (
	askTimeout       = 3 * time.Second // of one server
	minInterval      = 5 * time.Second
	reportedInterval = time.Minute // while changes are reported
	// After a report the question waits for a random part of spread, but at least half of it: all agents get the report at the same time.
	spread = time.Second
	// maxEndpoints bounds the endpoints of an answer.
	maxEndpoints = 256
)

// Config configures a [Discovery]. All fields are required.
type Config struct {
	Service string           // name of the headless Service, absolute
	Servers []netip.AddrPort // of the resolver's Service; the first one that answers counts
	Open    func(ctx context.Context, addr netip.AddrPort) (net.Conn, error)
	Zone    func() string // topology zone of this node; empty: unknown
	// Found receives the endpoints after each answer, sorted by address and without duplicates. One in another zone than this node has a
	// Zone that no zone of a node equals.
	Found    func([]upstream.ServiceEndpoint)
	Reported func() bool // changes of the Service are reported by [Discovery.Wake]
	Log      *slog.Logger
}

// A Discovery asks for endpoints. Its methods are safe for concurrent use.
type Discovery struct {
	cfg  Config
	wake chan struct{} // gets an element to ask soon; has room for one

	mu    sync.Mutex // guards stats
	stats Stats
}

// Stats say how the latest question was answered.
type Stats struct {
	Synced    bool   `json:"synced"`              // endpoints were found since the start
	LastError string `json:"lastError,omitempty"` // of the latest question; empty: it was answered
}

// New returns a Discovery to Run.
func New(cfg Config) *Discovery {
	return &Discovery{cfg: cfg, wake: make(chan struct{}, 1)}
}

// String names the task in logs.
func (d *Discovery) String() string { return "discovery of " + d.cfg.Service }

// Scope names the headless Service, and who is asked for it.
func (d *Discovery) Scope() string { return fmt.Sprintf("%s of %s", d.cfg.Service, d.cfg.Servers) }

// Stats returns how the latest question was answered, nil for a nil Discovery.
func (d *Discovery) Stats() *Stats {
	if d == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return new(d.stats)
}

// Wake has the endpoints asked for soon: they may have changed, or the zone of this node.
func (d *Discovery) Wake() {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Run asks for endpoints until ctx ends.
func (d *Discovery) Run(ctx context.Context) error {
	failed := retry.Backoff{First: time.Second, Last: minInterval}
	timer := time.NewTimer(0)
	defer timer.Stop()
	woken := false
	for {
		select {
		case <-timer.C:
			woken = false
		case <-d.wake:
			woken = true
			if retry.Sleep(ctx, spread/2+rand.N(spread/2)) != nil { //nolint:gosec // not a secret
				return nil
			}
		case <-ctx.Done():
			return nil
		}
		var ttl time.Duration
		err := panics.Guard{Where: "discovery", Log: d.cfg.Log}.Do(ctx, func() (err error) {
			ttl, err = d.ask(ctx)
			return err
		})
		if ctx.Err() != nil {
			return nil
		}
		d.note(ctx, err)
		wait := min(max(ttl, minInterval), reportedInterval)
		switch {
		case err != nil:
			wait = failed.Next()
		case woken:
			wait = minInterval
		case d.cfg.Reported():
			wait = reportedInterval
		}
		if err == nil {
			failed.Reset()
			wait += rand.N(wait / 8) //nolint:gosec // not a secret
		}
		timer.Reset(wait)
	}
}

// note stores how the latest question was answered, and logs an error that the one before did not have.
func (d *Discovery) note(ctx context.Context, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	d.mu.Lock()
	changed := (err == nil) != (d.stats.LastError == "")
	d.stats = Stats{Synced: d.stats.Synced || err == nil, LastError: text}
	d.mu.Unlock()
	if changed && err != nil {
		d.cfg.Log.WarnContext(ctx, "finding central endpoints failed", "service", d.cfg.Service, "err", err)
	}
}

// ask asks the servers in turn, and passes on the first answer.
func (d *Discovery) ask(ctx context.Context) (ttl time.Duration, err error) {
	for _, server := range d.cfg.Servers {
		found, ttl, askErr := d.askServer(ctx, server)
		if askErr == nil {
			d.cfg.Found(found)
			return ttl, nil
		}
		err = errors.Join(err, fmt.Errorf("%s: %w", server, askErr))
	}
	return 0, err
}

// askServer asks one server for the endpoints.
func (d *Discovery) askServer(ctx context.Context, server netip.AddrPort) (found []upstream.ServiceEndpoint, ttl time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	conn, err := d.cfg.Open(ctx, server)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	c := &dns.Conn{Conn: conn}
	all, err := exchange(c, "_dns-tcp._tcp."+d.cfg.Service)
	if err != nil {
		return nil, 0, err
	}
	list := endpointsOf(all)
	if len(list) == 0 {
		return nil, 0, errors.New("the answer has no endpoint with an address")
	}
	zone := d.cfg.Zone()
	var near []netip.AddrPort
	if zone != "" {
		switch answer, err := exchange(c, zone+".pin._zone."+d.cfg.Service); {
		case err == nil:
			near = endpointsOf(answer)
		case errors.Is(err, errNone): // no endpoint is in the zone
		default:
			zone = "" // the server does not know of zones
		}
	}
	for _, addr := range list {
		e := upstream.ServiceEndpoint{Addr: addr, Zone: zone}
		if zone != "" && !slices.ContainsFunc(near, func(n netip.AddrPort) bool { return n.Addr() == addr.Addr() }) {
			e.Zone = "not " + zone
		}
		found = append(found, e)
	}
	return found, time.Duration(all.Answer[0].Header().Ttl) * time.Second, nil
}

// errNone is the error of a name that has no endpoints.
var errNone = errors.New("no endpoint is ready")

// exchange asks for the SRV records of a name. It returns errNone for an empty answer.
func exchange(c *dns.Conn, name string) (*dns.Msg, error) {
	q := new(dns.Msg).SetQuestion(name, dns.TypeSRV)
	q.RecursionDesired = false
	if err := c.WriteMsg(q); err != nil {
		return nil, fmt.Errorf("asking for %s: %w", name, err)
	}
	m, err := c.ReadMsg()
	switch {
	case err != nil:
		return nil, fmt.Errorf("asking for %s: %w", name, err)
	case !m.Response || m.Id != q.Id || len(m.Question) != 1 || !strings.EqualFold(m.Question[0].Name, name) || m.Question[0].Qtype != dns.TypeSRV:
		return nil, fmt.Errorf("asking for %s: the answer is to another question", name)
	case m.Rcode != dns.RcodeSuccess:
		return nil, fmt.Errorf("asking for %s: %s", name, dns.RcodeToString[m.Rcode])
	case len(m.Answer) == 0:
		return nil, fmt.Errorf("asking for %s: %w", name, errNone)
	}
	return m, nil
}

// endpointsOf returns the addresses and ports of the SRV records of an answer, sorted and without duplicates, at most maxEndpoints. It
// leaves out addresses that the API server refuses for endpoints: traffic of pods may be sent there.
func endpointsOf(m *dns.Msg) (list []netip.AddrPort) {
	addrs := map[string][]netip.Addr{}
	for _, rr := range m.Extra {
		var ip net.IP
		switch r := rr.(type) {
		case *dns.A:
			ip = r.A
		case *dns.AAAA:
			ip = r.AAAA
		default:
			continue
		}
		addr, _ := netip.AddrFromSlice(ip)
		if addr = addr.Unmap(); !addr.IsGlobalUnicast() {
			continue
		}
		name := dns.CanonicalName(rr.Header().Name)
		addrs[name] = append(addrs[name], addr)
	}
	for _, rr := range m.Answer {
		srv, ok := rr.(*dns.SRV)
		if !ok || srv.Port == 0 {
			continue
		}
		for _, addr := range addrs[dns.CanonicalName(srv.Target)] {
			list = append(list, netip.AddrPortFrom(addr, srv.Port))
		}
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	list = slices.Compact(list)
	return list[:min(len(list), maxEndpoints)]
}
