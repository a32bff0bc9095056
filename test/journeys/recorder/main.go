// SPDX-License-Identifier: Apache-2.0

// Command recorder records which functions run in an agent while it is idle, while it answers a hit and a miss, and while it
// applies a changed configuration. It must be built with coverage counters.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/coverage"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/source"
)

// usage: recorder LISTEN FOLDER. It writes the coverage data of each journey to a folder of its name in FOLDER.
func main() {
	if err := record(netip.MustParseAddrPort(os.Args[1]), os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, "recorder:", err)
		os.Exit(1)
	}
}

func record(listen netip.AddrPort, folder string) error {
	central, err := serveCentral()
	if err != nil {
		return err
	}
	file := filepath.Join(folder, "node-cache.yaml")
	configure := func(staleTTL string) error {
		text := fmt.Sprintf("listen: {addresses: [%q], port: %d}\nadmin: {address: \"\"}\ncache: {serveStale: {ttl: %s}}\n"+
			"cluster: {resolver: central, central: {addresses: [%q]}}\n", listen.Addr(), listen.Port(), staleTTL, central)
		return os.WriteFile(file, []byte(text), 0o600)
	}
	if err := configure("30s"); err != nil {
		return err
	}
	log := logLines(make(chan string, 100))
	a, err := agent.New(agent.Options{Source: source.Config{File: file}, Log: log})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := a.Listen(ctx); err != nil {
		return err
	}
	ended := make(chan error)
	go func() { ended <- a.Run(ctx) }()
	<-a.Ready()

	idle := func() error {
		time.Sleep(7 * time.Second) // longer than the period of every poll
		return nil
	}
	query := func(name string) func() error { return func() error { return query(listen, name) } }
	known := query("web.shop.svc.cluster.local.")
	err = errors.Join(known(), known(), // connect to the central resolver, and fill the cache
		idle(), capture(folder, "idle", idle))
	for i := range 3 { // something else may run during one of them
		reload := func() error {
			if err := configure(fmt.Sprintf("%ds", 20+i)); err != nil {
				return err
			}
			return log.wait("configuration applied")
		}
		err = errors.Join(err, capture(folder, fmt.Sprint("hit", i), known),
			capture(folder, fmt.Sprint("miss", i), query(fmt.Sprintf("db%d.shop.svc.cluster.local.", i))))
		time.Sleep(2 * time.Second) // the timers of that query end
		err = errors.Join(err, capture(folder, fmt.Sprint("reload", i), reload))
	}
	cancel()
	return errors.Join(err, <-ended)
}

// capture writes the coverage data of do.
func capture(folder, name string, do func() error) error {
	if err := coverage.ClearCounters(); err != nil {
		return err
	}
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	time.Sleep(50 * time.Millisecond) // for what follows an answer: stores, counters
	to := filepath.Join(folder, name)
	return errors.Join(os.Mkdir(to, 0o755), coverage.WriteMetaDir(to), coverage.WriteCountersDir(to))
}

// query asks for the address of name.
func query(server netip.AddrPort, name string) error {
	r, err := dns.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), server.String())
	if err != nil {
		return err
	}
	if len(r.Answer) != 1 {
		return fmt.Errorf("%s: got %v, want one record", name, r)
	}
	return nil
}

// serveCentral answers every query with one address.
func serveCentral() (netip.AddrPort, error) {
	addr, err := proctest.ReservePort(context.Background())
	if err != nil {
		return addr, err
	}
	_, err = proctest.ServeDNS(&net.ListenConfig{}, addr, dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		r := new(dns.Msg).SetReply(q)
		if question := q.Question[0]; question.Qtype == dns.TypeA {
			header := dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 300}
			r.Answer = []dns.RR{&dns.A{Hdr: header, A: []byte{10, 96, 0, 7}}}
		}
		_ = w.WriteMsg(r)
	}))
	return addr, err
}

// logLines receives what the agent logs.
type logLines chan string

func (l logLines) Write(line []byte) (int, error) {
	select {
	case l <- string(line):
	default: // full: wait is not called yet
	}
	return len(line), nil
}

// wait returns once a line with text arrives.
func (l logLines) wait(text string) error {
	limit := time.After(10 * time.Second)
	for {
		select {
		case line := <-l:
			if strings.Contains(line, text) {
				return nil
			}
		case <-limit:
			return fmt.Errorf("the agent logged no line with %q", text)
		}
	}
}
