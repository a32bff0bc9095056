// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A scriptServer accepts every subscription, and gives every name the same address.
type scriptServer struct {
	address atomic.Value // in a question's answer
	silent  chan struct{}
	push    chan []byte
}

func newScriptServer(address string) *scriptServer {
	s := &scriptServer{silent: make(chan struct{}), push: make(chan []byte)}
	s.address.Store(address)
	return s
}

// serve has one session. Once it is silent, it sends no more heartbeats.
func (s *scriptServer) serve(conn net.Conn) {
	closed := make(chan struct{})
	go func() { // ends with the connection
		defer close(closed)
		in := bufio.NewReader(conn)
		for {
			msg, err := readMessage(in, nil)
			if err != nil {
				return
			}
			s.write(conn, s.reply(msg))
		}
	}()
	view := dso.AppendView(dso.AppendKeepalive(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), dso.Keepalive{}), dso.View{})
	s.write(conn, view)
	beat := time.NewTicker(2 * time.Second)
	defer beat.Stop()
	for {
		select {
		case <-closed:
			return
		case <-s.silent:
			return
		case msg := <-s.push:
			s.write(conn, msg)
		case <-beat.C:
			s.write(conn, view)
		}
	}
}

func (s *scriptServer) write(conn net.Conn, msg []byte) {
	_, _ = conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)) // closed: the test is at its end
}

func (s *scriptServer) reply(msg []byte) []byte {
	if dso.IsDSO(msg) {
		return dso.AppendHeader(nil, dso.Response, binary.BigEndian.Uint16(msg), 0)
	}
	q := new(dns.Msg)
	_ = q.Unpack(msg)
	m := new(dns.Msg).SetReply(q)
	record, _ := dns.NewRR(q.Question[0].Name + " 5 IN A " + s.address.Load().(string))
	m.Answer = []dns.RR{record}
	reply, _ := m.Pack()
	return reply
}

// TestFleetAgents has simulated agents subscribe, get a change, and come back when their server is silent.
func TestFleetAgents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		servers := [2]*scriptServer{newScriptServer("10.96.0.1"), newScriptServer("10.96.0.2")}
		names := testNames("a.", "b.")
		var connections [2]atomic.Int64
		f := &fleet{names: names, dial: func(_ context.Context, _, server int) (net.Conn, error) {
			here, there := net.Pipe()
			connections[server].Add(1)
			go servers[server].serve(there)
			return here, nil
		}}
		ctx, cancel := context.WithCancel(t.Context())
		defer f.tasks.Wait()
		defer cancel()
		for _, n := range names {
			n.expect("\x00\x04\x0a\x60\x00\x01", nil)
		}
		f.begin(2)
		for i := range 2 {
			f.start(ctx, i, []*fleetName{names["\x01a\x00"], names["\x01b\x00"]}, time.Second)
		}
		ready, err := f.await(ctx, time.Minute)
		assert.NoError(t, err)
		assert.Same(t, "ready", []time.Duration{time.Second, time.Second}, ready.latencies)

		got := new(events)
		a := names["\x01a\x00"]
		a.expect("\x00\x04\x0a\x60\x00\x03", func(r rightAnswer) { got.latencies = append(got.latencies, r.reply) })
		servers[0].address.Store("10.96.0.3")
		a.written(time.Now())
		time.Sleep(20 * time.Millisecond)
		var p dso.Push
		p.Begin(nil)
		p.RemoveName(a.wire)
		servers[0].push <- p.End() // to one of the agents
		synctest.Wait()
		assert.Same(t, "one agent is right", []time.Duration{20 * time.Millisecond}, got.latencies)
		assert.Equal(t, "agents with the old answer", 1, a.missing())

		for _, n := range names {
			n.expect("\x00\x04\x0a\x60\x00\x02", nil)
		}
		f.begin(2)
		close(servers[0].silent)
		ready, err = f.await(ctx, time.Minute)
		assert.NoError(t, err)
		if first, last := ready.quantile(0), ready.quantile(1); first < vouched-2*time.Second || last > vouched+comeBack {
			t.Errorf("subscribed again after %s to %s, want %s to %s", first, last, vouched-2*time.Second, vouched+comeBack)
		}
		assert.Equal(t, "connections to the silent server", 2, connections[0].Load())
		assert.Equal(t, "connections to the other", 2, connections[1].Load())
	})
}

func TestFleetNameWaitsForTheChange(t *testing.T) {
	t.Parallel()
	var took []time.Duration
	n := testNames("a.")["\x01a\x00"]
	n.holders[1], n.holders[2] = struct{}{}, struct{}{}
	n.expect("", func(r rightAnswer) { took = append(took, r.reply, r.watch) })
	denial := make([]byte, wire.HeaderLen)
	denial[3] = dns.RcodeNameError
	now := time.Unix(1000, 0)
	n.answered(1, denial, now) // before the API server has answered
	n.written(now)
	n.seen(now.Add(1500 * ms))
	n.seen(now.Add(1600 * ms))                  // another event
	n.answered(1, denial, now.Add(time.Second)) // it had it already
	n.answered(2, make([]byte, wire.HeaderLen), now.Add(time.Second))
	assert.Equal(t, "agents without the denial", 1, n.missing())
	n.answered(2, denial, now.Add(2*time.Second))
	assert.Same(t, "times", []time.Duration{0, 0, 2 * time.Second, 500 * ms}, took)
}

func testNames(list ...string) map[string]*fleetName {
	names := map[string]*fleetName{}
	for _, text := range list {
		n := newFleetName(text)
		names[string(n.wire)] = n
	}
	return names
}
