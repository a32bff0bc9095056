// SPDX-License-Identifier: Apache-2.0

// Command recorder records which functions run in an agent while it is idle, while it answers a hit and a miss, while it
// applies a changed configuration, and while it follows a change of a Service. It must be built with coverage counters.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/coverage"
	"strings"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/configsource"
	"github.com/nodecache/node-cache/pkg/watch/watchtest"
)

// usage: recorder LISTEN FOLDER. It writes the coverage data of each journey to a folder of its name in FOLDER.
func main() {
	listen, folder := netip.MustParseAddrPort(os.Args[1]), os.Args[2]
	err := recordQueries(listen, folder)
	if err == nil {
		err = recordEvents(listen, folder)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "recorder:", err)
		os.Exit(1)
	}
}

// recordQueries records an agent that asks a central resolver.
func recordQueries(listen netip.AddrPort, folder string) error {
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
	stop, err := run(file, log)
	if err != nil {
		return err
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
	return errors.Join(err, stop())
}

// recordEvents records an agent that watches an API server.
func recordEvents(listen netip.AddrPort, folder string) error {
	api := watchtest.New(time.Now)
	service := func(address string) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
			Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIP: address, ClusterIPs: []string{address}},
		}
	}
	api.Put(service("10.96.0.1"))
	socket, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: api, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(socket) }()
	defer func() { _ = server.Close() }()
	kubeconfig, file := filepath.Join(folder, "kubeconfig"), filepath.Join(folder, "events.yaml")
	err = errors.Join(
		os.WriteFile(kubeconfig, fmt.Appendf(nil, "{current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: 'http://%s'}}]}", socket.Addr()), 0o600),
		os.WriteFile(file, fmt.Appendf(nil, "listen: {addresses: [%q], port: %d}\nadmin: {address: \"\"}\ncluster: {resolver: local, kubeconfig: %s}\n", listen.Addr(), listen.Port(), kubeconfig), 0o600))
	if err != nil {
		return err
	}
	stop, err := run(file, logLines(make(chan string, 100)))
	if err != nil {
		return err
	}
	err = errors.Join(query(listen, "web.shop.svc.cluster.local."), capture(folder, "calm", idle))
	for i := range 3 {
		change := func() error {
			api.Put(service(fmt.Sprintf("10.96.0.%d", 2+i)))
			time.Sleep(time.Second) // for the event
			return nil
		}
		err = errors.Join(err, capture(folder, fmt.Sprint("event", i), change), query(listen, "web.shop.svc.cluster.local."))
	}
	return errors.Join(err, stop())
}

// idle waits for longer than the period of every poll.
func idle() error {
	time.Sleep(7 * time.Second)
	return nil
}

// run runs an agent with a configuration file until stop is called.
func run(file string, log logLines) (stop func() error, err error) {
	a, err := agent.New(agent.Options{Source: configsource.Config{File: file}, Log: log})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := a.Listen(ctx); err != nil {
		cancel()
		return nil, err
	}
	ended := make(chan error)
	go func() { ended <- a.Run(ctx) }()
	<-a.Ready()
	return func() error {
		cancel()
		return <-ended
	}, nil
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
