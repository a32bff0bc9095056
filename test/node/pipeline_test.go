// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/nodetest"
)

// A pipeline is a client that has several queries under way on one TCP session that it keeps open. When the server ends
// the session it opens another and asks again what was not answered, as a resolver does.
type pipeline struct {
	host  *nodetest.Host
	to    netip.AddrPort
	depth int
	stop  chan struct{}
	group sync.WaitGroup

	answered, repeated, opened int // to be read after end
	failed                     error
}

func startPipeline(t *testing.T, host *nodetest.Host, to netip.AddrPort, depth int) *pipeline {
	t.Helper()
	p := &pipeline{host: host, to: to, depth: depth, stop: make(chan struct{})}
	p.group.Go(p.run)
	t.Cleanup(func() {
		select {
		case <-p.stop:
		default:
			close(p.stop)
		}
		p.group.Wait()
	})
	return p
}

// end stops asking, and fails the test if a query was not answered.
func (p *pipeline) end(t *testing.T) {
	t.Helper()
	close(p.stop)
	p.group.Wait()
	if p.failed != nil {
		t.Errorf("%s over a TCP session: %v", p.host.Name, p.failed)
	}
	if p.answered == 0 {
		t.Errorf("%s: nothing was answered over a TCP session", p.host.Name)
	}
}

// run asks in rounds of depth queries, until stop. A round that does not end within five seconds, or after ten
// sessions, has failed.
func (p *pipeline) run() {
	var conn net.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close()
		}
	}()
	id := uint16(0)
	for {
		select {
		case <-p.stop:
			return
		case <-time.After(5 * time.Millisecond):
		}
		open := map[uint16]bool{}
		for range p.depth {
			id++
			open[id] = true
		}
		for try := 0; len(open) > 0; try++ {
			if try == 10 {
				p.failed = fmt.Errorf("%d queries without an answer after %d sessions", len(open), try)
				return
			}
			if try > 0 {
				p.repeated += len(open)
			}
			var err error
			if conn == nil {
				p.opened++
				if conn, err = p.host.Dial(context.Background(), "tcp", p.to.String()); err != nil {
					p.failed = err
					return
				}
			}
			if err = p.round(conn, open); err != nil {
				_ = conn.Close()
				conn = nil
				if failed, ok := err.(*answerError); ok { //nolint:errorlint // it is never wrapped
					p.failed = failed
					return
				}
			}
		}
	}
}

// An answerError describes an answer that no client should get.
type answerError struct{ text string }

func (e *answerError) Error() string { return e.text }

// round asks what is open, all at once, and takes what is answered from it.
func (p *pipeline) round(conn net.Conn, open map[uint16]bool) error {
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	var out []byte
	for id := range open {
		q := new(dns.Msg).SetQuestion("who.nodetest.test.", dns.TypeTXT)
		q.Id = id
		packed, err := q.Pack()
		if err != nil {
			return err
		}
		out = append(binary.BigEndian.AppendUint16(out, uint16(len(packed))), packed...)
	}
	if _, err := conn.Write(out); err != nil {
		return err
	}
	for len(open) > 0 {
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return err
		}
		packed := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, packed); err != nil {
			return err
		}
		r := new(dns.Msg)
		if err := r.Unpack(packed); err != nil {
			return &answerError{err.Error()}
		}
		if r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1 || !strings.Contains(r.Answer[0].String(), byAgent) || !open[r.Id] {
			return &answerError{r.String()}
		}
		delete(open, r.Id)
		p.answered++
	}
	return nil
}
