// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/nodecache/node-cache/internal/kubetest"
)

// TestListsAskForWhatIsThere writes the lists of a cluster and holds them against its objects.
func TestListsAskForWhatIsThere(t *testing.T) {
	t.Parallel()
	exists := map[string]bool{} // lines of the lists that have an answer
	var services []corev1.Service
	for _, o := range kubetest.Large(50, 5, endpointsPer) {
		switch o := o.(type) {
		case *corev1.Service:
			if o.Spec.ClusterIP == "" { // the API server gives it one
				o.Spec.ClusterIP = fmt.Sprintf("10.96.1.%d", len(services))
				reverse, err := dns.ReverseAddr(o.Spec.ClusterIP)
				if err != nil {
					t.Fatal(err)
				}
				exists[strings.TrimSuffix(reverse, ".")+" PTR"] = true
				exists["_http._tcp."+nameOf(*o)+" SRV"] = true
			}
			exists[nameOf(*o)+" A"] = true
			services = append(services, *o)
		case *discoveryv1.EndpointSlice:
			for _, e := range o.Endpoints {
				label := strings.ReplaceAll(e.Addresses[0], ".", "-")
				if e.Hostname != nil {
					label = *e.Hostname
				}
				exists[fmt.Sprintf("%s.%s.%s.svc.%s A", label, o.Labels[discoveryv1.LabelServiceName], o.Namespace, domain)] = true
			}
		}
	}
	dirs := []string{t.TempDir(), t.TempDir()}
	for _, dir := range dirs {
		if err := writeLists(dir, services); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range loads() {
		lines := readLines(t, filepath.Join(dirs[0], l.name))
		if !cmp.Equal(lines, readLines(t, filepath.Join(dirs[1], l.name))) {
			t.Errorf("%s differs between two runs", l.name)
		}
		if len(lines) != listLines {
			t.Errorf("%s: %d lines, want %d", l.name, len(lines), listLines)
		}
		for _, line := range lines {
			if want := l.rcode == "NOERROR"; exists[line] != want {
				t.Fatalf("%s asks for %q, which exists: %t, want %t", l.name, line, exists[line], want)
			}
		}
	}
}

func readLines(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
}

func TestListsNeedServicesOfBothKinds(t *testing.T) {
	t.Parallel()
	if err := writeLists(t.TempDir(), nil); err == nil {
		t.Error("lists for a cluster without services, want an error")
	}
}

const perfText = `DNS Performance Testing Tool
Version 2.10.0

Statistics:

  Queries sent:         1010
  Queries completed:    1000 (99.01%)
  Queries lost:         10 (0.99%)

  Response codes:       NOERROR 990 (99.00%), SERVFAIL 10 (1.00%)
  Run time (s):         2.000000
  Queries per second:   500.000000
`

func TestParsePerf(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text, rcode string
		want              perf
		err               string
	}{
		{
			name: "whole", text: perfText, rcode: "NOERROR",
			want: perf{version: "2.10.0", completed: 1000, lost: 10, qps: 500, right: 990},
		},
		{
			name: "a code that did not come", text: perfText, rcode: "NXDOMAIN",
			want: perf{version: "2.10.0", completed: 1000, lost: 10, qps: 500},
		},
		{name: "another format", text: "Queries completed: many", rcode: "NOERROR", err: `reading dnsperf's "Queries completed"`},
		{
			name: "codes without counts", text: strings.ReplaceAll(perfText, "NOERROR 990 (99.00%)", "NOERROR"), rcode: "NOERROR",
			err: "reading dnsperf's response codes",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := parsePerf(tt.text, tt.rcode)
			if (err == nil) != (tt.err == "") || (err != nil && !strings.Contains(err.Error(), tt.err)) {
				t.Fatalf("error %v, want %q", err, tt.err)
			}
			if err != nil {
				return
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(perf{})); diff != "" {
				t.Errorf("parsePerf (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNewShot(t *testing.T) {
	t.Parallel()
	p := perf{completed: 200_000, lost: 3, qps: 100_000, right: 199_990}
	got, err := newLoadResult(p, time.Second, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	want := loadResult{cpu: 5, qps: 100_000, busy: 0.5, lost: 3, wrong: 10, asked: 200_003}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(loadResult{})); diff != "" {
		t.Errorf("newShot (-want +got):\n%s", diff)
	}
	if _, err := newLoadResult(perf{lost: 400}, time.Second, time.Second); err == nil {
		t.Error("newShot accepted a load without an answer")
	}
	if _, err := newLoadResult(p, 9*tick, time.Second); err == nil {
		t.Error("newShot accepted a CPU time of a few ticks")
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	got, err := parseStat("7 (a (odd) name) S 1 7 7 0 -1 4194304 100 0 0 0 150 50 25 5 20 0 1 0 100 1000 10")
	if want := 230 * tick; got != want || err != nil {
		t.Errorf("parseStat = %s, %v, want %s", got, err, want)
	}
	if _, err := parseStat("7 (name) S 1"); err == nil {
		t.Error("parseStat accepted a short line")
	}
	busy, all, err := parseMachineTime("cpu  1 2 3 40 5 6 7 8 9 10\ncpu0 1\n")
	if busy != 27*tick || all != 72*tick || err != nil {
		t.Errorf("parseMachineTime = %s, %s, %v, want 270ms and 720ms", busy, all, err)
	}
	if _, _, err := parseMachineTime("cpu 1 2"); err == nil {
		t.Error("parseMachineTime accepted a short line")
	}
	before, after := clocks{server: 1, busy: 10, all: 100}, clocks{server: 11, busy: 40, all: 200}
	if got := after.othersSince(before, 5); got != 0.15 {
		t.Errorf("othersSince = %v, want 0.15", got)
	}
	m, err := parseStatus("Name:\tx\nVmHWM:\t  2048 kB\nVmRSS:\t  1536 kB\n")
	if want := (memory{now: 1.5, peak: 2}); m != want || err != nil {
		t.Errorf("parseStatus = %+v, %v, want %+v", m, err, want)
	}
	if _, err := parseStatus("Name:\tx\n"); err == nil {
		t.Error("parseStatus accepted a process without memory")
	}
}
