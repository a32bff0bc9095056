// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/doctor"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

func TestDoctorConfig(t *testing.T) {
	t.Parallel()
	addrs := []netip.Addr{netip.MustParseAddr("169.254.20.10")}
	service := netip.MustParseAddr("10.96.0.10")
	for _, tt := range []struct {
		name, text string
		x          doctorFlags
		want       doctor.Config
	}{
		{
			name: "defaults", x: doctorFlags{timeout: time.Second, noPod: true},
			want: doctor.Config{
				Rules:   rules.Rules{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Port: 1053},
				Backend: "auto", Link: "nodelocaldns", Admin: netip.MustParseAddrPort("127.0.0.1:9253"), Timeout: time.Second,
			},
		},
		{
			name: "link-local", x: doctorFlags{noPod: true},
			text: "listen: {addresses: [169.254.20.10], port: 53}\nclusterDomain: k8s.example\nintercept: {manage: true, backend: nftables, fallback: none}\ninterface: {manage: true, name: dns0}\nadmin: {address: ''}",
			want: doctor.Config{
				Intercept: true, Rules: rules.Rules{Addresses: addrs, Port: 53}, Backend: "nftables", ManageLink: true, Link: "dns0",
				Name: "kubernetes.default.svc.k8s.example.", Domain: "k8s.example.",
			},
		},
		{
			name: "transparent", x: doctorFlags{noPod: true, name: "-", service: []string{"10.96.0.10"}},
			text: "listen: {addresses: [169.254.20.10], port: 53}\nintercept: {manage: true, mode: transparent}\ncluster: {resolver: central, manifests: ., central: {service: a/b}}",
			want: doctor.Config{
				Intercept: true, Rules: rules.Rules{Mode: rules.Transparent, Addresses: addrs, Port: 53, Services: []netip.Addr{service}},
				Backend: "auto", Link: "nodelocaldns", Admin: netip.MustParseAddrPort("127.0.0.1:9253"),
			},
		},
		{
			name: "another name", x: doctorFlags{noPod: true, name: "www.example.org"},
			want: doctor.Config{
				Rules:   rules.Rules{Addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1")}, Port: 1053},
				Backend: "auto", Link: "nodelocaldns", Admin: netip.MustParseAddrPort("127.0.0.1:9253"), Name: "www.example.org.",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg, err := config.Parse([]byte(tt.text), config.Agent)
			must(t, err)
			got, err := tt.x.config(&cfg)
			must(t, err)
			tt.want.KernelHits, tt.want.NoPod = "off", true
			if tt.want.Domain == "" {
				tt.want.Domain = cfg.ClusterDomain
			}
			diff := cmp.Diff(tt.want, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}), cmpopts.IgnoreFields(doctor.Config{}, "Now", "Command"), cmpopts.EquateEmpty())
			if diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
		})
	}
}

// TestDoctorPush has agents with and without push, and none.
func TestDoctorPush(t *testing.T) {
	t.Parallel()
	const configured = "cluster: {resolver: central, manifests: ., central: {service: a/b, push: on}}"
	for _, tt := range []struct {
		name, config, page string
		want               string
	}{
		{"a session", configured, `{"cluster": {"central": {"push": {"server": "push://192.0.2.1:53", "names": 2}}}}`, "session push://192.0.2.1:53"},
		{"a resolver", "", `{"push": {"sessions": 3}, "cluster": {}}`, "3 sessions"},
		{"off", "", `{"cluster": {"central": {}}}`, ""},
		{"no page", configured, "<html>", "error"},
		{"no page, and off", "", "<html>", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg, err := config.Parse([]byte(tt.config), config.Agent)
			must(t, err)
			addr := serveSocket(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/status" {
					_, _ = io.WriteString(w, tt.page)
				}
			}))
			cfg.Admin.Socket = strings.TrimPrefix(addr, "unix:")
			x, got := doctorFlags{timeout: time.Minute}, ""
			switch p := x.push(t.Context(), &cfg); {
			case p.Err != nil:
				got = "error"
			case p.Session != nil:
				got = "session " + p.Session.Server
			case p.Served != nil:
				got = fmt.Sprint(p.Served.Sessions, " sessions")
			}
			assert.Equal(t, "push", tt.want, got)
		})
	}
}

// TestDoctorResolver checks a resolver, whose configuration is not one of an agent.
func TestDoctorResolver(t *testing.T) {
	t.Parallel()
	addr := serveSocket(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"push": {"sessions": 3, "refused": {"memory": 7}}}`)
	}))
	const text = "push: {clients: [10.0.0.0/16]}\nlisten: {addresses: [127.0.0.1], port: 1}\ncluster: {manifests: ., ranges: [10.96.0.0/12]}\nadmin: {address: '', socket: %s}\n"
	got := command("doctor", "--no-pod", "--name", "-", "--config", file(t, fmt.Sprintf(text, strings.TrimPrefix(addr, "unix:"))))
	if !strings.Contains(got.Stdout, "for lack of memory since the start: 7 subscriptions refused") {
		t.Errorf("%+v", got)
	}
}

// TestDoctorComparesZones has a Corefile with a zone for each way to serve one, a line without counterpart in two blocks, names in a file,
// and upstreams of its own, and agents that serve none, some and all of it.
func TestDoctorComparesZones(t *testing.T) {
	t.Parallel()
	corefile := file(t, `.:53 {
  kubernetes cluster.local in-addr.arpa ip6.arpa
  rewrite name regex (.*).old.example {1}.new.example
  rewrite name exact shop.example web.shop.svc.cluster.local
  hosts /etc/hosts {
    192.0.2.1 db.example
    192.0.2.2 printer.lan.example
    fallthrough
  }
  template IN A ip.example {
    answer "{{ .Name }} 60 IN A 192.0.2.3"
  }
  forward . 192.0.2.53
}
corp.example:53 {
  forward . 192.0.2.54
}
dept.corp.example:53 {
  file /etc/dept
}
`)
	const zones, files = "names that the cluster's DNS serves go to the default route: ", "names in files of the cluster's DNS go to the default route: /etc/hosts"
	const lines, servers = "lines of the Corefile have no counterpart: ", "only the cluster's DNS asks these servers for other names: 192.0.2.53"
	const rewrite, file53 = `rewrite name regex (.*).old.example {1}.new.example`, "file /etc/dept"
	for _, tt := range []struct {
		name, config string
		want         []string
	}{
		{"none", "", []string{
			zones + "cluster.local., corp.example., db.example., dept.corp.example., ip.example., printer.lan.example., shop.example.",
			files, lines + file53 + ", " + rewrite, servers,
		}},
		{
			"some", "forward: [{zone: ., to: [192.0.2.53]}, {zone: lan.example, to: [192.0.2.55]}]\ncluster: {resolver: central, zones: [corp.example], central: {addresses: [192.0.2.53]}}",
			[]string{zones + "db.example., ip.example., shop.example.", files, lines + rewrite},
		},
		{"all", "forward: []\ncluster: {resolver: central, zones: [.], central: {addresses: [192.0.2.53]}}", []string{"the agent serves what the cluster's DNS serves"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := command("doctor", "--no-pod", "--config", file(t, fmt.Sprintf("%s\nlisten: {port: %d}", tt.config, proctest.FreeAddr(t).Port())), "--corefile", corefile)
			var said []string
			for line := range strings.Lines(got.Stdout) {
				if check, what, _ := strings.Cut(strings.TrimSpace(line[min(7, len(line)):]), " "); check == "zones" {
					said = append(said, strings.TrimSpace(what))
				}
			}
			assert.Same(t, "lines", tt.want, said)
		})
	}
}

// TestDoctorSeesNoAgent runs the doctor for an address without a listener.
func TestDoctorSeesNoAgent(t *testing.T) {
	t.Parallel()
	name := file(t, fmt.Sprintf("listen: {port: %d}\nadmin: {address: ''}\n", proctest.FreeAddr(t).Port()))

	got := command("doctor", "--config", name, "--no-pod", "--output", "json")
	var report struct {
		Title string
		Lines []struct{ Check, Verdict string }
	}
	if err := json.Unmarshal([]byte(got.Stdout), &report); err != nil {
		t.Fatalf("report: %v: %q, %q", err, got.Stdout, got.Stderr)
	}
	verdicts := map[string]string{}
	for _, l := range report.Lines {
		verdicts[l.Check] = l.Verdict
	}
	if got.Code != cli.ExitFailed || got.Stderr != "" || verdicts["listener 127.0.0.1"] != "fail" || verdicts["127.0.0.1"] != "fail" {
		t.Errorf("exit code %d, standard error %q, checks %v", got.Code, got.Stderr, verdicts)
	}

	got = command("doctor", "--config", name, "--no-pod")
	if got.Code != cli.ExitFailed || !strings.HasPrefix(got.Stdout, report.Title+"\n\nThis node\n") {
		t.Errorf("exit code %d, report %q", got.Code, got.Stdout)
	}
	if got := command("doctor", "--config", name+".gone"); got.Code != cli.ExitFailed || !strings.Contains(got.Stderr, "no such file") {
		t.Errorf("without its file: exit code %d, standard error %q", got.Code, got.Stderr)
	}
}
