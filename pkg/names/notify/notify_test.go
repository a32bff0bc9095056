// SPDX-License-Identifier: Apache-2.0

package notify_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/notify"
	"github.com/nodecache/node-cache/pkg/names/tsig"
	"github.com/nodecache/node-cache/pkg/names/zone"
)

const secret = "c2VjcmV0IG9mIHRlc3Rz"

// A secondary is a server for NOTIFY.
type secondary struct {
	addr netip.AddrPort
	got  chan time.Time // when each message came
}

// startSecondary runs a server that answers with a function; nil: not at all. secrets are by key.
func startSecondary(t *testing.T, answer func(*dns.Msg) *dns.Msg, secrets map[string]string) *secondary {
	t.Helper()
	conn, err := new(net.ListenConfig).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	assert.NoError(t, err)
	s := &secondary{addr: netip.MustParseAddrPort(conn.LocalAddr().String()), got: make(chan time.Time, 1000)}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if q.Opcode != dns.OpcodeNotify || q.Question[0] != (dns.Question{Name: "cluster.local.", Qtype: dns.TypeSOA, Qclass: dns.ClassINET}) {
			t.Errorf("got %s", q)
		}
		s.got <- time.Now()
		if answer == nil {
			return
		}
		m := answer(q)
		if key := q.IsTsig(); key != nil && secrets != nil && w.TsigStatus() == nil {
			m.SetTsig(key.Hdr.Name, key.Algorithm, 300, time.Now().Unix())
		}
		_ = w.WriteMsg(m) // the client sees what is missing
	})
	acceptAll := func(dns.Header) dns.MsgAcceptAction { return dns.MsgAccept }
	server := &dns.Server{PacketConn: conn, TsigSecret: secrets, MsgAcceptFunc: acceptAll, Handler: handler}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.ActivateAndServe() })
	t.Cleanup(func() { _ = conn.Close(); serving.Wait() })
	return s
}

func accept(q *dns.Msg) *dns.Msg { return new(dns.Msg).SetReply(q) }

// An observer passes the changes of a store on to a notifier.
type observer struct{ *notify.Notifier }

func (observer) Changing()           {}
func (observer) OwnerChanged([]byte) {}

// start runs a notifier of a store for the secondary servers, until the test ends.
func start(t *testing.T, s *zone.Store, keys *tsig.Keys, to ...*secondary) (*notify.Notifier, *strings.Builder) {
	t.Helper()
	ready := make(chan struct{})
	close(ready)
	var log strings.Builder
	cfg := notify.Config{Stores: []*zone.Store{s}, Ready: ready, Zones: []string{"cluster.local."}, Keys: keys, Log: slog.New(slog.NewTextHandler(&log, nil)), Now: time.Now}
	for _, server := range to {
		cfg.To = append(cfg.To, server.addr)
	}
	n := notify.New(cfg)
	s.Observe(nil, observer{n})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { assert.NoError(t, n.Run(ctx)) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return n, &log
}

func put(s *zone.Store, i int) {
	s.PutService(zone.Service{Namespace: "shop", Name: "web", Type: zone.ExternalName, ExternalName: fmt.Sprintf("h%d.example.com", i)}, time.Now())
}

// await waits until a server's state is as wanted.
func await(t *testing.T, n *notify.Notifier, what string, wanted func(notify.Server) bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !wanted(n.Stats().Servers[0]); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: %+v", what, n.Stats())
		}
	}
}

// TestRate changes a zone at full speed: a server that answers gets one message a second, and one for the last change. One that
// never answers gets fewer and fewer.
func TestRate(t *testing.T) {
	t.Parallel()
	s := zone.NewStore()
	put(s, 0)
	answering, silent := startSecondary(t, accept, nil), startSecondary(t, nil, nil)
	n, _ := start(t, s, nil, answering, silent)
	begun := time.Now()
	for i := 0; time.Since(begun) < 3500*time.Millisecond; i++ {
		put(s, i)
	}
	await(t, n, "the last change is notified", func(to notify.Server) bool { return to.Serial == s.Serial() && s.Serial() != 0 })
	took := time.Since(begun)
	if got := len(answering.got); got < 3 || got > 2+int(took/time.Second) {
		t.Errorf("%d messages in %v", got, took)
	}
	for last := <-answering.got; len(answering.got) > 0; {
		next := <-answering.got
		if gap := next.Sub(last); gap < 950*time.Millisecond {
			t.Errorf("two messages within %v", gap)
		}
		last = next
	}
	if got := len(silent.got); got > 2 {
		t.Errorf("the server that does not answer got %d messages in %v", got, took)
	}
}

// TestAnswers has a server answer in several ways. Only a good answer ends the attempts.
func TestAnswers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "keys")
	assert.NoError(t, os.WriteFile(path, fmt.Appendf(nil, "key first { algorithm hmac-sha256; secret %[1]q; };\nkey second { algorithm hmac-sha512; secret %[1]q; };", secret), 0o600))
	keys, err := tsig.New(path, slog.New(slog.DiscardHandler))
	assert.NoError(t, err)
	both := map[string]string{"first.": secret, "second.": secret}
	for _, tt := range []struct {
		name    string
		keys    *tsig.Keys
		secrets map[string]string
		answer  func(*dns.Msg) *dns.Msg
		want    string // the error
		good    bool   // in the end
	}{
		{name: "without keys", answer: accept, good: true},
		{name: "signed", keys: keys, secrets: both, answer: accept, good: true},
		{name: "refused", answer: func(q *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(q, dns.RcodeRefused) }, want: "REFUSED"},
		{name: "an answer without a signature", keys: keys, answer: accept, want: "not signed"},
		{name: "the second key only", keys: keys, secrets: both, want: "NOTAUTH", good: true, answer: func(q *dns.Msg) *dns.Msg {
			if q.IsTsig().Hdr.Name == "first." {
				return new(dns.Msg).SetRcode(q, dns.RcodeNotAuth)
			}
			return accept(q)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := zone.NewStore()
			put(s, 0)
			n, log := start(t, s, tt.keys, startSecondary(t, tt.answer, tt.secrets))
			if tt.want != "" {
				await(t, n, tt.want, func(to notify.Server) bool { return strings.Contains(to.LastError, tt.want) })
			}
			if tt.good {
				await(t, n, "answered", func(to notify.Server) bool { return to.LastError == "" && to.Serial == s.Serial() })
			}
			if lines := strings.Count(log.String(), "notify failed"); lines > 1 {
				t.Errorf("%d lines for one failure", lines)
			}
		})
	}
}

// TestReady sends nothing before the store is complete.
func TestReady(t *testing.T) {
	t.Parallel()
	to := startSecondary(t, accept, nil)
	ctx, cancel := context.WithCancel(t.Context())
	n := notify.New(notify.Config{Stores: []*zone.Store{zone.NewStore()}, Ready: make(chan struct{}), To: []netip.AddrPort{to.addr}})
	cancel()
	assert.NoError(t, n.Run(ctx))
	assert.Equal(t, "messages", 0, len(to.got))
}
