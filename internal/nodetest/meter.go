// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sort"
	"sync"
	"syscall"
	"time"
)

// A Load is one client of a [Meter].
type Load struct {
	Network string // "udp" or "tcp"
	// Fresh sends each query from a new port. Otherwise all UDP queries share one port, and TCP queries go one after
	// the other over one connection, which is reopened when it breaks.
	Fresh bool
	Rate  int // queries a second
}

// MeterConfig configures a meter: what it queries, and from where.
type MeterConfig struct {
	Host    *Host
	Target  netip.AddrPort
	Loads   []Load
	Timeout time.Duration // after which a query is lost; 0: 1 s
	Linger  time.Duration // how much longer to wait for a late answer, but for one over a TCP session that stays open
	Names   int           // number of names to ask for; 0: 1
}

// A Result is the outcome of a query.
type Result uint8

// The results.
const (
	Lost     Result = iota // no answer in time
	Answered               // by a server, with its name
	Refused                // ICMP port unreachable or a TCP reset on connect
	Reset                  // the TCP connection ended
	Failed                 // an error response, no data, or a send error
	Late                   // answered after the timeout
)

// String returns the result's name.
func (r Result) String() string {
	return [...]string{"lost", "answered", "refused", "reset", "failed", "late"}[r]
}

// An Outcome is the result of one query.
type Outcome struct {
	Load   int           // index in MeterConfig.Loads
	Sent   time.Time     // when
	Took   time.Duration // until the answer or the error
	Result Result
	Who    string // name of the server that answered; if Failed: why
}

// A Meter queries a server at a steady rate, without retries, and records every outcome.
type Meter struct {
	config MeterConfig
	stop   chan struct{}
	group  sync.WaitGroup

	mu       sync.Mutex // guards outcomes
	outcomes []Outcome  // in the order of sending
}

// StartMeter starts a meter. The caller stops it.
func StartMeter(c MeterConfig) (*Meter, error) {
	if c.Timeout == 0 {
		c.Timeout = time.Second
	}
	c.Names = max(c.Names, 1)
	m := &Meter{config: c, stop: make(chan struct{})}
	for i, l := range c.Loads {
		var run func()
		var err error
		switch {
		case l.Rate < 1 || l.Rate > 50_000:
			err = fmt.Errorf("a load of %d queries a second", l.Rate)
		case l.Fresh:
			run = func() { m.fresh(i, l) }
		case l.Network == "udp":
			run, err = m.oneUDP(i, l.Rate)
		default:
			run = func() { m.oneTCP(i, l.Rate) }
		}
		if err != nil {
			m.Stop()
			return nil, err
		}
		m.group.Go(run)
	}
	return m, nil
}

// Stop stops sending, waits for the last answers and returns the report.
func (m *Meter) Stop() Report {
	select {
	case <-m.stop:
	default:
		close(m.stop)
	}
	m.group.Wait()
	return m.Report()
}

// Report returns the outcomes so far. Queries in flight count as lost.
func (m *Meter) Report() Report {
	m.mu.Lock()
	defer m.mu.Unlock()
	return Report{Outcomes: append([]Outcome(nil), m.outcomes...)}
}

// FirstBy returns when the server called who first answered a query that one client sent at or after a time.
func (m *Meter) FirstBy(load int, who string, after time.Time) (at time.Time, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	start := sort.Search(len(m.outcomes), func(i int) bool { return !m.outcomes[i].Sent.Before(after) })
	for _, o := range m.outcomes[start:] {
		if ok && o.Sent.After(at) {
			break // later outcomes are not sent yet either
		}
		if o.Load != load || o.Result != Answered || o.Who != who {
			continue
		}
		if came := o.Sent.Add(o.Took); !ok || came.Before(at) {
			at, ok = came, true
		}
	}
	return at, ok
}

// Await waits until the server called who has answered a query that was sent at or after a time, and returns when
// that first answer came. It returns false after the limit.
func (m *Meter) Await(who string, after time.Time, limit time.Duration) (time.Time, bool) {
	for deadline := now().Add(limit); ; {
		if at, ok := m.Report().FirstBy(who, after); ok {
			return at, true
		}
		if now().After(deadline) {
			return time.Time{}, false
		}
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // answers are noted, not announced
	}
}

// now is the clock of all measurements.
func now() time.Time {
	return time.Now() //nolint:forbidigo // measures real servers
}

// pace calls send with the number of queries that are due, until the meter stops. A client that falls behind by more
// than a second skips queries.
func (m *Meter) pace(rate int, send func(n int)) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	began, sent := now(), 0
	for {
		select {
		case <-m.stop:
			return
		case <-tick.C:
		}
		due := int(now().Sub(began)*time.Duration(rate)/time.Second) - sent
		if due > rate {
			sent += due - 1
			due = 1
		}
		if due > 0 {
			send(due)
			sent += due
		}
	}
}

// begin records a query that is sent now and returns its index.
func (m *Meter) begin(load int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.outcomes = append(m.outcomes, Outcome{Load: load, Sent: now()})
	return len(m.outcomes) - 1
}

// end records the outcome of query i. Only the first call counts. An answer after the timeout is late.
func (m *Meter) end(i int, r Result, who string) {
	at := now()
	m.mu.Lock()
	defer m.mu.Unlock()
	o := &m.outcomes[i]
	took := at.Sub(o.Sent)
	if took > m.config.Timeout && r == Answered {
		r = Late
	}
	if o.Result == Lost {
		o.Took, o.Result, o.Who = took, r, who
	}
}

// answer records the answer to query i.
func (m *Meter) answer(i int, msg []byte) {
	if name, err := serverName(msg); err != nil {
		m.end(i, Failed, err.Error())
	} else {
		m.end(i, Answered, name)
	}
}

// fail records the error of query i.
func (m *Meter) fail(i int, err error) {
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded): // lost
	case errors.Is(err, syscall.ECONNREFUSED):
		m.end(i, Refused, "")
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), isEOF(err):
		m.end(i, Reset, "")
	default:
		m.end(i, Failed, err.Error())
	}
}

// name returns the name that query i asks for.
func (m *Meter) name(i int) string {
	if n := i % m.config.Names; n > 0 {
		return fmt.Sprintf("who%d.nodetest.test.", n)
	}
	return askName
}
