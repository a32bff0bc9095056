// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
)

const (
	domain    = "cluster.local"
	listLines = 20_000 // queries in the lists that dnsperf repeats
	externals = 302    // names that clients of a cluster ask with a search suffix
)

// A load is one way to query the zone.
type load struct {
	name  string // its list's file
	title string // in the report
	rcode string // of a right answer
	tcp   bool
}

// The names of the loads that the budgets speak of; the first is also the floor's.
const (
	addressLoad = "address"
	denialLoad  = "denial"
)

// loads returns every load, in the order in which they run.
func loads() []load {
	return []load{
		{name: addressLoad, title: "A of a service", rcode: "NOERROR"},
		{name: denialLoad, title: "denial", rcode: "NXDOMAIN"},
		{name: "srv", title: "SRV of a service", rcode: "NOERROR"},
		{name: "ptr", title: "PTR of a service", rcode: "NOERROR"},
		{name: "endpoint", title: "A of an endpoint", rcode: "NOERROR"},
		{name: "headless", title: "A of 100 endpoints, UDP", rcode: "NOERROR"},
		{name: "headless-tcp", title: "A of 100 endpoints, TCP", rcode: "NOERROR", tcp: true},
	}
}

// writeLists writes a file of queries for each load. The same services give the same lists.
func writeLists(dir string, services []corev1.Service) error {
	var clustered, headless []corev1.Service
	for i := range services {
		switch s := services[i]; {
		case strings.HasPrefix(s.Name, "cluster-"):
			clustered = append(clustered, s)
		case strings.HasPrefix(s.Name, "headless-"):
			headless = append(headless, s)
		}
	}
	if len(clustered) == 0 || len(headless) == 0 {
		return errors.New("writing lists: the cluster lacks services of one kind")
	}
	slices.SortFunc(clustered, byNumber)
	slices.SortFunc(headless, byNumber)
	l := lister{random: rand.New(rand.NewPCG(1, 0)), clustered: clustered, headless: headless}
	for _, load := range loads() {
		lines := make([]string, listLines)
		for i := range lines {
			lines[i] = l.line(load.name)
		}
		if err := os.WriteFile(filepath.Join(dir, load.name), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			return fmt.Errorf("writing a list: %w", err)
		}
	}
	return nil
}

// byNumber orders services by the number at the end of their names.
func byNumber(a, b corev1.Service) int { return cmp.Compare(number(a.Name), number(b.Name)) }

func number(name string) int {
	n, _ := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:]) // 0 is as good an order
	return n
}

func nameOf(s corev1.Service) string { return s.Name + "." + s.Namespace + ".svc." + domain }

// A lister makes queries.
type lister struct {
	random              *rand.Rand
	clustered, headless []corev1.Service
	asked               int       // denials so far
	external            string    // asked behind each search suffix in turn
	cumulative          []float64 // of the Zipf law over clustered
}

// line is one query of a load.
func (l *lister) line(load string) string {
	switch load {
	case addressLoad:
		return nameOf(l.skewed()) + " A"
	case denialLoad:
		return l.denial()
	case "srv":
		return "_http._tcp." + nameOf(l.skewed()) + " SRV"
	case "ptr":
		return l.pointer()
	case "endpoint":
		return l.endpoint()
	default: // the sets, over either transport
		return nameOf(l.set()) + " A"
	}
}

// skewed is a service with an address by a Zipf law with exponent 1: what clients of a cluster ask is skewed.
func (l *lister) skewed() corev1.Service {
	if l.cumulative == nil {
		sum := 0.0
		for i := range l.clustered {
			sum += 1 / float64(i+1)
			l.cumulative = append(l.cumulative, sum)
		}
	}
	at := l.random.Float64() * l.cumulative[len(l.cumulative)-1]
	i, _ := slices.BinarySearch(l.cumulative, at)
	return l.clustered[min(i, len(l.clustered)-1)]
}

// set is any headless service.
func (l *lister) set() corev1.Service { return l.headless[l.random.IntN(len(l.headless))] }

// denial asks for an external name behind each suffix of a pod's search list in turn.
func (l *lister) denial() string {
	suffixes := []string{".default.svc.", ".svc.", "."}
	if l.asked%len(suffixes) == 0 {
		l.external = fmt.Sprintf("h%d.example.net", l.random.IntN(externals))
	}
	suffix := suffixes[l.asked%len(suffixes)]
	l.asked++
	return l.external + suffix + domain + " A"
}

// pointer asks for the name of a service's address.
func (l *lister) pointer() string {
	reverse, err := dns.ReverseAddr(l.skewed().Spec.ClusterIP)
	if err != nil {
		return ". PTR" // answered with another response code, so counted as wrong
	}
	return strings.TrimSuffix(reverse, ".") + " PTR"
}

// endpoint asks for a name of its own; those of services with an even number have a hostname, the others are named
// by their address.
func (l *lister) endpoint() string {
	s := l.set()
	i, n := number(s.Name), l.random.IntN(endpointsPer)
	label := fmt.Sprintf("%s-%d", s.Name, n)
	if i%2 == 1 {
		label = strings.ReplaceAll(endpointAddr(i*endpointsPer+n).String(), ".", "-")
	}
	return label + "." + nameOf(s) + " A"
}

// endpointAddr is the address of an endpoint of [kubetest.Large].
func endpointAddr(number int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 128 + byte(number>>16), byte(number >> 8), byte(number)})
}

// A loadResult is one load of one round.
type loadResult struct {
	cpu    float64 // of the server per answer, µs
	qps    float64
	busy   float64 // share of its core that the server used
	others float64 // share of all CPUs that went neither to the server nor to dnsperf
	lost   int64
	wrong  int64
	asked  int64
}

// The least CPU time that makes a shot: the kernel counts in ticks of 10 ms.
const leastCPU = 10 * tick

// runLoad runs one load against a server.
func (b *bench) runLoad(ctx context.Context, p *process, l load, port int) (loadResult, error) {
	before, err := readClocks(p)
	if err != nil {
		return loadResult{}, err
	}
	got, err := dnsperfRun{list: filepath.Join(b.dir, l.name), port: port, seconds: b.opts.seconds, tcp: l.tcp, rcode: l.rcode}.run(ctx)
	if err != nil {
		return loadResult{}, err
	}
	after, err := readClocks(p)
	if err != nil {
		return loadResult{}, err
	}
	b.report.generator = "dnsperf " + got.version
	s, err := newLoadResult(got, after.server-before.server, time.Duration(b.opts.seconds)*time.Second)
	s.others = after.othersSince(before, got.cpu)
	return s, err
}

// clocks is the CPU time that was used up to one moment.
type clocks struct {
	server    time.Duration
	busy, all time.Duration // of the machine
}

func readClocks(p *process) (clocks, error) {
	var (
		c   clocks
		err error
	)
	if c.server, err = cpuTime(p.pid()); err != nil {
		return clocks{}, err
	}
	c.busy, c.all, err = machineTime()
	return c, err
}

// othersSince is what neither the server nor the generator used. The kernel books the machine's time and a process's by
// different means: the difference is good to a few percent.
func (c clocks) othersSince(before clocks, generator time.Duration) float64 {
	all := c.all - before.all
	if all <= 0 {
		return 0
	}
	return max(0, float64(c.busy-before.busy-(c.server-before.server)-generator)/float64(all))
}

func newLoadResult(p perf, cpu, length time.Duration) (loadResult, error) {
	if p.completed == 0 {
		return loadResult{}, fmt.Errorf("answered none of %d queries", p.lost)
	}
	if cpu < leastCPU {
		return loadResult{}, fmt.Errorf("used %s of CPU for %d queries, too little to tell their cost", cpu, p.completed)
	}
	return loadResult{
		cpu: cpu.Seconds() / float64(p.completed) * 1e6, qps: p.qps, busy: cpu.Seconds() / length.Seconds(),
		lost: p.lost, wrong: p.completed - p.right, asked: p.completed + p.lost,
	}, nil
}
