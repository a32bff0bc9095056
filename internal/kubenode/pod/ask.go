// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// An client asks one server.
type client struct {
	server       string // IP:port
	asked        []question
	every        time.Duration // between two queries of a transport
	floodClients int           // clients that ask without a pause besides
	timeout      time.Duration

	mu  sync.Mutex // guards now, and the beginning of a query in it
	now *epoch
}

// ask runs a client until ctx ends: a query to each transport from time to time, each from a port of its own, and counts
// at http://:8080/counts.
func ask(ctx context.Context, args []string) error {
	a := client{now: &epoch{}}
	flags := flag.NewFlagSet("ask", flag.ContinueOnError)
	flags.StringVar(&a.server, "server", "", "`address` of the server; empty: the first of /etc/resolv.conf")
	names := flags.String("names", "kubernetes.default.svc.cluster.local",
		"`questions` by commas: a name, or NAME/TYPE, or NAME/TYPE/DATA of a record that the answer has to have")
	flags.DurationVar(&a.every, "every", 10*time.Millisecond, "`time` between two queries")
	flags.IntVar(&a.floodClients, "flood", 0, "`clients` that ask without a pause")
	flags.DurationVar(&a.timeout, "timeout", 5*time.Second, "`time` after which a query is lost")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q", flags.Arg(0))
	}
	var err error
	if a.asked, err = questions(*names); err != nil {
		return err
	}
	if a.server == "" {
		if a.server, err = nameserver("/etc/resolv.conf"); err != nil {
			return err
		}
	}
	a.server = net.JoinHostPort(a.server, "53")
	return a.run(ctx)
}

func (c *client) run(ctx context.Context) error {
	var group sync.WaitGroup
	group.Go(func() { c.askAtInterval(ctx, "udp", func(e *epoch) *counts { return &e.udp }) })
	group.Go(func() { c.askAtInterval(ctx, "tcp", func(e *epoch) *counts { return &e.tcp }) })
	for i := range c.floodClients {
		group.Go(func() { c.flood(ctx, i) })
	}
	server := &http.Server{Addr: ":8080", Handler: c, ReadHeaderTimeout: time.Minute}
	group.Go(func() {
		<-ctx.Done()
		_ = server.Close()
	})
	err := server.ListenAndServe()
	group.Wait()
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving counts: %w", err)
	}
	return nil
}

// askAtInterval asks every so often, whether the queries before are answered or not.
func (c *client) askAtInterval(ctx context.Context, network string, counts func(*epoch) *counts) {
	var group sync.WaitGroup
	defer group.Wait()
	ticker := time.NewTicker(c.every)
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		q := c.asked[i%len(c.asked)]
		e := c.begin()
		group.Go(func() {
			defer e.inFlight.Done()
			counts(e).count(c.once(network, q))
		})
	}
}

// once asks one query on a socket of its own.
func (c *client) once(network string, q question) (took time.Duration, err error) {
	client := dns.Client{Net: network, Timeout: c.timeout}
	answer, took, err := client.Exchange(q.message(), c.server)
	if err != nil {
		return took, fmt.Errorf("%s: %w", q.name, err)
	}
	return took, q.check(answer)
}

// flood asks without a pause on one socket.
func (c *client) flood(ctx context.Context, i int) {
	client := dns.Client{Timeout: c.timeout}
	for ctx.Err() == nil {
		conn, err := client.DialContext(ctx, c.server)
		if err != nil {
			return
		}
		for range 10_000 {
			if ctx.Err() != nil {
				break
			}
			e, q := c.begin(), c.asked[i%len(c.asked)]
			answer, took, err := client.ExchangeWithConnContext(ctx, q.message(), conn)
			if err == nil {
				err = q.check(answer)
			}
			e.flooded.count(took, err)
			e.inFlight.Done()
		}
		_ = conn.Close()
	}
}

// begin begins a query, whose end is to be reported to the epoch.
func (c *client) begin() *epoch {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now.inFlight.Add(1)
	return c.now
}

// ServeHTTP gives the counts as JSON. A POST begins a new epoch and gives the counts of the one before, when all of its
// queries are answered or lost.
func (c *client) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	e := c.now
	if r.Method == http.MethodPost {
		c.now = &epoch{}
	}
	c.mu.Unlock()
	if r.Method == http.MethodPost {
		e.inFlight.Wait()
	}
	_ = json.NewEncoder(w).Encode(e.tallies()) // the client may have gone
}

// nameserver is the first of a resolv.conf.
func nameserver(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("finding the server: %w", err)
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 1 && fields[0] == "nameserver" {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("finding the server: none in %s", path)
}
