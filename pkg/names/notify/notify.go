// SPDX-License-Identifier: Apache-2.0

// Package notify sends NOTIFY to secondary servers after changes of a zone (RFC 1996).
package notify

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/pkg/names/tsig"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/retry"
)

const (
	interval    = time.Second     // shortest time between two versions, and between two notifications of a server
	timeout     = 2 * time.Second // timeout of one message
	retryFirst  = time.Second
	retryLast   = time.Minute
	maxAttempts = 10 // attempts for one change; the next change gets as many, after the delay of the last attempt
)

// Config configures a Notifier.
type Config struct {
	Stores []*zone.Store    // stores of the zones: the cluster's, then the cluster set's if there is one
	Ready  <-chan struct{}  // closed once the stores are complete
	Zones  []string         // absolute names of the zones
	To     []netip.AddrPort // the secondary servers; empty: only versions are made
	Keys   *tsig.Keys       // nil: messages are not signed
	Log    *slog.Logger
	Now    func() time.Time
}

// A Notifier makes a version of the stores' changes at most once a second, and notifies the servers of each.
type Notifier struct {
	cfg     Config
	servers []*server
	changed chan struct{} // has an element after a change of a store

	answered, failed atomic.Uint64 // number of NOTIFY messages with a good answer, and of all others
}

// New returns a Notifier.
func New(cfg Config) *Notifier {
	n := &Notifier{cfg: cfg, changed: make(chan struct{}, 1)}
	for _, to := range cfg.To {
		n.servers = append(n.servers, &server{n: n, wake: make(chan struct{}, 1), state: Server{Addr: to}})
	}
	return n
}

// Changed makes Run cut a version if a store has changed. Call it after a change.
func (n *Notifier) Changed() { wake(n.changed) }

// wake puts an element into the channel, unless it has one.
func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run runs until ctx ends, and returns nil then.
func (n *Notifier) Run(ctx context.Context) error {
	select {
	case <-n.cfg.Ready:
	case <-ctx.Done():
		return nil
	}
	var running sync.WaitGroup
	defer running.Wait()
	for _, s := range n.servers {
		running.Go(func() { s.run(ctx) })
	}
	var last []uint32 // serials of which the servers were notified; nil: none yet
	for {
		var serials []uint32
		for _, s := range n.cfg.Stores {
			serials = append(serials, s.Versions().Cut(n.cfg.Now()))
		}
		for _, s := range n.servers {
			if !slices.Equal(serials, last) {
				wake(s.wake)
			}
		}
		last = serials
		if retry.Sleep(ctx, interval) != nil {
			return nil
		}
		select {
		case <-n.changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// Stats are the counts of a Notifier.
type Stats struct {
	Answered, Failed uint64 // number of NOTIFY messages with a good answer, and of all others
	Servers          []Server
}

// A Server is the state of a secondary server.
type Server struct {
	Addr      netip.AddrPort `json:"address"`
	Serial    uint32         `json:"serial"`              // serial of the cluster's last version of which a NOTIFY was answered; 0: none
	LastError string         `json:"lastError,omitempty"` // why the last NOTIFY failed; empty: it was answered, or none was sent
}

// Stats returns the counts.
func (n *Notifier) Stats() Stats {
	total := Stats{Answered: n.answered.Load(), Failed: n.failed.Load()}
	for _, s := range n.servers {
		s.mu.Lock()
		total.Servers = append(total.Servers, s.state)
		s.mu.Unlock()
	}
	return total
}

// A server is a secondary server.
type server struct {
	n    *Notifier
	wake chan struct{} // has an element if the server must be notified
	key  int           // index of the key in use; each NOTAUTH moves on to the next key

	mu    sync.Mutex // guards state
	state Server
}

// run notifies the server of changes until ctx ends.
func (s *server) run(ctx context.Context) {
	backoff := retry.Backoff{First: retryFirst, Last: retryLast}
	var failed time.Time // time of the last failure
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		for answered, n := false, 0; !answered && n < maxAttempts; n++ {
			pause := interval
			if answered = s.notify(ctx); !answered {
				pause, failed = backoff.Next(), s.n.cfg.Now()
			} else if s.n.cfg.Now().Sub(failed) > retryLast { // a server that fails every other time keeps its longer delay
				backoff.Reset()
			}
			if retry.Sleep(ctx, pause) != nil {
				return
			}
		}
	}
}

// notify notifies the server of the current version of every zone, and reports whether it has answered.
func (s *server) notify(ctx context.Context) bool {
	serial := s.n.cfg.Stores[0].Serial()
	for _, name := range s.n.cfg.Zones {
		if err := s.exchange(ctx, name); err != nil {
			if ctx.Err() == nil {
				s.failed(ctx, name, err)
			}
			return false
		}
		s.n.answered.Add(1)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.LastError != "" {
		s.n.cfg.Log.InfoContext(ctx, "notify answered again", "secondary", s.state.Addr)
	}
	s.state.Serial, s.state.LastError = serial, ""
	return true
}

// failed counts a failed NOTIFY, and logs it if it is the first since the server last accepted those of all zones.
func (s *server) failed(ctx context.Context, name string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.LastError == "" {
		s.n.cfg.Log.WarnContext(ctx, "notify failed", "secondary", s.state.Addr, "zone", name, "err", err)
	}
	s.n.failed.Add(1)
	s.state.LastError = err.Error()
}

// exchange sends a NOTIFY for the zone of that name, and reads the answer.
func (s *server) exchange(ctx context.Context, name string) error {
	client := &dns.Client{Timeout: timeout}
	m := new(dns.Msg).SetNotify(name)
	if s.n.cfg.Keys != nil {
		keys := s.n.cfg.Keys.All()
		key := keys[s.key%len(keys)]
		client.TsigSecret = map[string]string{key.Name: base64.StdEncoding.EncodeToString(key.Secret)}
		m.SetTsig(key.Name, key.Algorithm, 300, s.n.cfg.Now().Unix())
	}
	r, _, err := client.ExchangeContext(ctx, m, s.state.Addr.String())
	switch {
	case r != nil && r.Rcode == dns.RcodeNotAuth:
		s.key++
		return errors.New("the server answers NOTAUTH: it does not know the key, or the zone")
	case err != nil:
		return err
	case r.Rcode != dns.RcodeSuccess:
		return fmt.Errorf("the server answers %s", dns.RcodeToString[r.Rcode])
	case s.n.cfg.Keys != nil && r.IsTsig() == nil:
		return errors.New("the answer is not signed")
	}
	return nil
}
