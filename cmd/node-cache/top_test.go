// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/admin/top"
	"github.com/nodecache/node-cache/pkg/cli"
)

// asked are the pages of an agent, two seconds apart: db-0 has been replaced, and batch-1 is gone.
func asked() [2]top.Page {
	return [2]top.Page{
		{Pods: []top.Row{
			row("jobs", "batch-1", "Job/batch", top.Counts{Queries: 1000}),
			row("shop", "db-0", "StatefulSet/db", top.Counts{Queries: 5000, Failed: 40}),
			row("shop", "web-1", "Deployment/web", top.Counts{Queries: 100, Upstream: 10, NXDomain: 50, Search: 40, Bytes: 1000}),
			row("shop", "web-2", "Deployment/web", top.Counts{Queries: 7}),
		}, Unknown: top.Counts{Queries: 30}, Names: []top.Name{{Name: "www.test.", Counts: top.Counts{Queries: 40}}}},
		{Pods: []top.Row{
			row("shop", "db-0", "StatefulSet/db", top.Counts{Queries: 20, Failed: 20}),
			row("shop", "web-1", "Deployment/web", top.Counts{Queries: 300, Upstream: 30, NXDomain: 210, Search: 200, Shed: 2, Bytes: 21000, Waited: 0.5}),
			row("shop", "web-2", "Deployment/web", top.Counts{Queries: 107}),
			row("tools", "shell", "", top.Counts{Queries: 4}),
		}, Unknown: top.Counts{Queries: 90}, Names: []top.Name{
			{Name: "new.test.", Counts: top.Counts{Queries: 5}}, {Name: "www.test.", Counts: top.Counts{Queries: 60, Failed: 10}},
		}},
	}
}

func row(namespace, pod, workload string, counts top.Counts) top.Row {
	return top.Row{Namespace: namespace, Pod: pod, Workload: workload, Counts: counts}
}

func TestTopTable(t *testing.T) {
	t.Parallel()
	pages, began := asked(), time.Unix(1000, 0)
	v := topView{TopFlags: cli.TopFlags{By: "pod", Sort: "queries", Interval: 2 * time.Second, Number: 20}, after: topPage{Page: pages[0], at: began}}
	same(t, "the first page", "counting for 2s\n", v.table(20))
	v.before, v.after = v.after, topPage{Page: pages[1], at: began.Add(2 * time.Second)}
	for _, tt := range []struct{ keys, want string }{
		{"", `
QUERIES/S  UPSTREAM  NXDOMAIN  SEARCH  FAILED   SHED   LATENCY   BYTES/S  POD
    100.0      10 %      80 %    80 %     0 %    1 %    2.5 ms     10000  shop/web-1
     50.0       0 %       0 %     0 %     0 %    0 %    0.0 ms         0  shop/web-2
     30.0       0 %       0 %     0 %     0 %    0 %    0.0 ms         0  (no pod)
     10.0       0 %       0 %     0 %   100 %    0 %    0.0 ms         0  shop/db-0
      2.0       0 %       0 %     0 %     0 %    0 %    0.0 ms         0  tools/shell
`},
		{"w", `
QUERIES/S  UPSTREAM  NXDOMAIN  SEARCH  FAILED   SHED   LATENCY   BYTES/S  WORKLOAD
    150.0       7 %      53 %    53 %     0 %    1 %    1.7 ms     10000  shop/Deployment/web
     30.0       0 %       0 %     0 %     0 %    0 %    0.0 ms         0  (no pod)
     10.0       0 %       0 %     0 %   100 %    0 %    0.0 ms         0  shop/StatefulSet/db
      2.0       0 %       0 %     0 %     0 %    0 %    0.0 ms         0  tools/shell
`},
		{"d", `
QUERIES/S  UPSTREAM  NXDOMAIN  SEARCH  FAILED   SHED   LATENCY   BYTES/S  NAME
     10.0       0 %       0 %     0 %    50 %    0 %    0.0 ms         0  www.test.
      2.5       0 %       0 %     0 %     0 %    0 %    0.0 ms         0  new.test.
`},
		{"nssss", `
QUERIES/S  UPSTREAM  NXDOMAIN  SEARCH  FAILED   SHED   LATENCY   BYTES/S  NAMESPACE
    160.0       6 %      50 %    50 %     6 %    1 %    1.6 ms     10000  shop
     30.0       0 %       0 %     0 %     0 %    0 %    0.0 ms         0  (no pod)
      2.0       0 %       0 %     0 %     0 %    0 %    0.0 ms         0  tools
`},
	} {
		for _, key := range []byte(tt.keys) {
			v.press(key)
		}
		same(t, "after "+tt.keys, tt.want[1:], v.table(20))
	}
	same(t, "sorted by", "failed", v.Sort)
	v.press('p')
	same(t, "the first row by failures", "     10.0       0 %       0 %     0 %   100 %    0 %    0.0 ms         0  shop/db-0", strings.Split(v.table(1), "\n")[1])
	same(t, "lines of one row", 3, strings.Count(v.table(1), "\n")+1)
	v.after.Stale = true
	same(t, "a stale page", "The API server has not confirmed the pods recently.", strings.Split(v.table(1), "\n")[0])
}

// servePages serves the pages of asked, an empty one, and then errors.
func servePages(t *testing.T) (addr string) {
	t.Helper()
	var reads atomic.Int32
	s, err := admin.New(admin.Config{
		Socket: "unused", Metrics: http.NotFoundHandler(), Ready: func() error { return nil }, Status: func(bool) any { return nil },
		Top: func(string) (any, error) {
			switch n := reads.Add(1); n {
			case 1, 2:
				return asked()[n-1], nil
			case 3:
				return top.Page{Pods: []top.Row{}}, nil
			default:
				return nil, errors.New("not today")
			}
		},
	})
	must(t, err)
	return serveSocket(t, s.Handler())
}

// TestTopLive presses keys while the table is shown.
func TestTopLive(t *testing.T) {
	t.Parallel()
	v := topView{TopFlags: cli.TopFlags{By: "pod", Sort: "queries", Interval: time.Hour, Number: 2}}
	v.flags.admin = servePages(t)
	must(t, v.read(t.Context()))
	must(t, v.read(t.Context()))
	screen, out, err := os.Pipe()
	must(t, err)
	keys, ended := make(chan byte), make(chan error)
	go func() {
		err := v.live(t.Context(), out, keys)
		_ = out.Close()
		ended <- err
	}()
	for _, key := range []byte("wq") {
		keys <- key
	}
	must(t, <-ended)
	text, err := io.ReadAll(screen)
	must(t, err)
	frames := strings.Split(string(text), "\x1b[H\x1b[2J")[1:]
	same(t, "frames", 2, len(frames))
	for i, want := range []string{"BYTES/S  POD\r\n", "BYTES/S  WORKLOAD\r\n"} {
		if !strings.Contains(frames[i], want) || strings.Count(frames[i], "\n") != strings.Count(frames[i], "\r\n") {
			t.Errorf("frame %d: %q, want %q and no bare line feed", i, frames[i], want)
		}
	}
}

func TestTop(t *testing.T) {
	t.Parallel()
	addr := servePages(t)
	got := command("top", "--admin", addr, "--interval", "100ms", "-n", "1")
	table := regexp.MustCompile(`^QUERIES/S +UPSTREAM +NXDOMAIN +SEARCH +FAILED +SHED +LATENCY +BYTES/S  POD\n +[0-9.]+ +10 % +80 % +80 % +0 % +1 % +2.5 ms +[0-9]+  shop/web-1\n$`)
	if got.Code != cli.ExitOK || !table.MatchString(got.Stdout) {
		t.Errorf("got %+v", got)
	}
	got = command("top", "--admin", addr, "-o", "json")
	if want := `"pods": []`; got.Code != cli.ExitOK || !strings.Contains(got.Stdout, want) {
		t.Errorf("got %+v, want %s", got, want)
	}
	same(t, "refused", result{cli.ExitFailed, "", "node-cache: asking the agent at " + addr + " for /top: not today\n"}, command("top", "--admin", addr))
	for args, want := range map[string]string{
		"--by node": `--by "node": not one of pod, workload, namespace`, "--sort age": `--sort "age": not one of `,
		"-n 0": "--number 0: not from 1 to 1000", "--interval 1ms": "--interval 1ms: less than 100ms",
	} {
		got := command(append([]string{"top"}, strings.Fields(args)...)...)
		if got.Code != cli.ExitUsage || !strings.Contains(got.Stderr, want) {
			t.Errorf("%s: got %+v, want %s", args, got, want)
		}
	}
}
