// SPDX-License-Identifier: Apache-2.0

package subscribe_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cache"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/subscribe"
	"github.com/nodecache/node-cache/pkg/upstream"
	"github.com/nodecache/node-cache/pkg/wire"
)

const (
	ttl = 5 * time.Second
	web = "web.shop.svc.cluster.local"
)

// A harness is an agent: a client with its cache. It runs in a bubble of virtual time.
type harness struct {
	*subscribe.Client
	t       *testing.T
	cache   *cache.Cache
	servers []upstream.Server
	opened  []netip.AddrPort // servers that sessions were opened to
	pool    int              // queries of the pool
	got     chan string
	logMu   sync.Mutex
	log     bytes.Buffer
}

// newHarness returns an agent whose sessions serve serves: each with the number of the session, from 1. with changes its configuration.
func newHarness(t *testing.T, serve func(conn net.Conn, session int), with ...func(*subscribe.Config)) *harness {
	t.Helper()
	h := &harness{t: t, got: make(chan string, 1), servers: []upstream.Server{{Addr: netip.MustParseAddrPort("192.0.2.1:53")}}}
	var err error
	h.cache, err = cache.New(cache.Config{Size: cache.MinSize}, time.Now())
	assert.NoError(t, err)
	cfg := subscribe.Config{
		Cache: func() *cache.Cache { return h.cache }, Owner: func(name []byte) []byte { return zone.Owner(name, wireName(t, "cluster.local")) },
		Pool: (*pool)(h), Servers: func() []upstream.Server { return h.servers }, MaxAge: time.Minute, Now: time.Now, Log: slog.New(slog.NewTextHandler(h, nil)),
		Open: func(_ context.Context, addr netip.AddrPort) (net.Conn, error) {
			h.opened = append(h.opened, addr)
			agent, server := net.Pipe()
			go func() {
				defer func() { _ = server.Close() }()
				serve(server, len(h.opened))
			}()
			return agent, nil
		},
	}
	for _, change := range with {
		change(&cfg)
	}
	h.Client = subscribe.New(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		assert.NoError(t, <-done)
	})
	synctest.Wait()
	return h
}

// Write writes to the log.
func (h *harness) Write(b []byte) (int, error) {
	h.logMu.Lock()
	defer h.logMu.Unlock()
	return h.log.Write(b)
}

// A pool answers from no server's view.
type pool harness

func (p *pool) Ask(q []byte, _ time.Time, to wire.AnswerReceiver, batch *wire.SendBatch) {
	p.pool++
	var m wire.Message
	if err := m.Parse(answerTo(q, [4]byte{192, 0, 2, 255})); err != nil {
		p.t.Error(err)
	}
	to.Answered(&m, nil, batch)
}

// answerTo returns an answer of one address. 255.255.255.255 stands for none.
func answerTo(q []byte, addr [4]byte) []byte {
	var query wire.Query
	query.Parse(q)
	opts := wire.ReplyOptions{Limit: wire.MaxMessage, EDE: wire.EDENone}
	return query.AppendRecord(nil, query.Type, uint32(ttl/time.Second), addr[:], &opts)
}

// query returns the query for the A records of a name.
func query(t *testing.T, name string) []byte {
	t.Helper()
	return append(append([]byte{0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, wireName(t, name)...), 0, 1, 0, 1)
}

func wireName(t *testing.T, text string) []byte {
	t.Helper()
	name, err := wire.AppendName(nil, text)
	assert.NoError(t, err)
	return name
}

// lookup answers a client that asks for web. It returns "hit", or the address that the agent got.
func (h *harness) lookup() string {
	h.t.Helper()
	q := query(h.t, web)
	var parsed wire.Query
	parsed.Parse(q)
	msg, found := h.cache.Lookup(parsed.Key(), time.Now(), nil)
	if found == cache.Fresh || found == cache.PrefetchDue {
		if msg[len(msg)-4-3] == 0 {
			h.t.Errorf("TTL 0")
		}
		return "hit"
	}
	var batch wire.SendBatch
	h.Ask(q, time.Now().Add(4*time.Second), &receiver{h: h, key: append([]byte{}, parsed.Key()...), begun: time.Now()}, &batch)
	batch.Flush()
	return <-h.got
}

// A receiver stores an answer.
type receiver struct {
	h     *harness
	key   []byte
	begun time.Time
}

func (r *receiver) Answered(m *wire.Message, err error, _ *wire.SendBatch) {
	h := r.h
	if err != nil {
		h.got <- err.Error()
		return
	}
	a := cache.Answer{
		Msg: m.Raw, Lifetime: ttl, Owner: zone.Owner(r.key[:len(r.key)-3], wireName(h.t, "cluster.local")), QueriedAt: r.begun, Kept: m.Kept,
		AllTypes: m.Rcode() == wire.RcodeNXDomain,
	}
	for _, record := range m.Records {
		a.TTLs = append(a.TTLs, record.TTL)
	}
	h.cache.Put(r.key, &a, time.Now())
	if len(m.Records) > 0 && m.Records[0].Type == wire.TypeA {
		h.got <- net.IP(m.Raw[m.Records[0].Data():][:4]).String()
	} else {
		h.got <- "none"
	}
}

// readFrame returns the next message on a connection, nil at its end.
func readFrame(conn net.Conn) []byte {
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil
	}
	msg := make([]byte, int(size[0])<<8|int(size[1]))
	if _, err := io.ReadFull(conn, msg); err != nil {
		return nil
	}
	return msg
}

func writeFrame(conn net.Conn, msg []byte) error {
	frame, ok := wire.SealFrame(append(wire.OpenFrame(nil), msg...), 0)
	if !ok {
		return errors.New("a message that is too long")
	}
	_, err := conn.Write(frame)
	return err
}
