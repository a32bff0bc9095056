// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
)

func TestParseCluster(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		role config.Role
		text string
		want func(*config.Config) // changes the default of the role
	}{
		{
			name: "every key", text: `
clusterDomain: K8s.Example
cluster:
  resolver: local
  kubeconfig: /etc//kubeconfig
  central: {addresses: [192.0.2.1, '[2001:db8::1]:5353', '192.0.2.1:54'], connections: 16}
  endpoints: all
  endpointNames: pod
  pods: verified
  namespaces: [shop, kube-system, 1st]
  serviceSelector: app in (web,api), !hidden
  ignoreEmptyService: true
  ttl: 1h
  staleAfter: 5s
  ranges: [10.0.0.0/8, 10.96.0.0/12, '2001:db8::/32', 0.0.0.0/0]
  nodeZone: Zone_a.1
  transferTo: [192.0.2.1, 198.51.100.0/24, '2001:db8::1', '::/0']
`,
			want: func(c *config.Config) {
				c.ClusterDomain = "k8s.example."
				c.Cluster = config.Cluster{
					Resolver:   config.ResolverLocal,
					Kubeconfig: "/etc/kubeconfig",
					Central: config.Central{
						Addresses: []netip.AddrPort{
							netip.MustParseAddrPort("192.0.2.1:53"), netip.MustParseAddrPort("[2001:db8::1]:5353"),
							netip.MustParseAddrPort("192.0.2.1:54"),
						},
						Connections: 16,
					},
					Endpoints:          config.EndpointsAll,
					PodNames:           true,
					Pods:               config.PodsVerified,
					Namespaces:         []string{"shop", "kube-system", "1st"},
					ServiceSelector:    "app in (web,api), !hidden",
					IgnoreEmptyService: true,
					TTL:                time.Hour,
					StaleAfter:         5 * time.Second,
					Ranges: []netip.Prefix{
						netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.96.0.0/12"),
						netip.MustParsePrefix("2001:db8::/32"), netip.MustParsePrefix("0.0.0.0/0"),
					},
					NodeZone: "Zone_a.1",
					TransferTo: []netip.Prefix{
						netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("198.51.100.0/24"),
						netip.MustParsePrefix("2001:db8::1/128"), netip.MustParsePrefix("::/0"),
					},
				}
			},
		},
		{
			name: "a service out of a folder", text: "cluster: {resolver: central, manifests: ./objects/, central: {service: kube-system/kube-dns}}",
			want: func(c *config.Config) {
				c.Cluster.Resolver, c.Cluster.Manifests = config.ResolverCentral, "objects"
				c.Cluster.Central.Service = config.ServiceName{Namespace: "kube-system", Name: "kube-dns"}
			},
		},
		{
			name: "the other words", text: "cluster: {resolver: none, endpoints: none, endpointNames: address, pods: disabled, nodeZone: '', ttl: 0s}",
			want: func(c *config.Config) {
				c.Cluster.Endpoints, c.Cluster.Pods, c.Cluster.NodeZone, c.Cluster.TTL = config.EndpointsNone, config.PodsDisabled, "", 0
			},
		},
		{
			name: "empty lists and texts", text: "cluster: {kubeconfig: '', manifests: '', central: {service: '', addresses: []}, namespaces: [], " +
				"serviceSelector: '', namespaceSelector: '', ranges: [], transferTo: []}",
			want: func(*config.Config) {},
		},
		{
			name: "selected namespaces", text: "cluster: {namespaceSelector: 'team==a,tier notin (x)'}",
			want: func(c *config.Config) { c.Cluster.NamespaceSelector = "team==a,tier notin (x)" },
		},
		{
			name: "a route for the domain that is forwarded", text: "forward: [{zone: cluster.local, to: [192.0.2.1]}, {zone: ., to: [192.0.2.1]}]",
			want: func(c *config.Config) {
				to := []config.Target{{Addr: netip.MustParseAddrPort("192.0.2.1:53")}}
				c.Forward = []config.Route{config.DefaultRoute("cluster.local.", to...), config.DefaultRoute(".", to...)}
			},
		},
		{
			name: "a route below the domain and one above it",
			text: "forward: [{zone: stub.cluster.local, to: [192.0.2.1]}, {zone: local, to: [192.0.2.1]}, {zone: ., to: [192.0.2.1]}]\ncluster: {resolver: local}",
			want: func(c *config.Config) {
				to := []config.Target{{Addr: netip.MustParseAddrPort("192.0.2.1:53")}}
				c.Forward = []config.Route{config.DefaultRoute("stub.cluster.local.", to...), config.DefaultRoute("local.", to...), config.DefaultRoute(".", to...)}
				c.Cluster.Resolver = config.ResolverLocal
			},
		},
		{name: "an empty file of a resolver", role: config.Resolver, text: "", want: func(*config.Config) {}},
		{
			name: "a resolver's defaults, written out", role: config.Resolver,
			text: "listen: {addresses: ['::']}\ncluster: {resolver: local, central: {connections: 2}, endpoints: all}\nadmin: {address: '[::]:9253'}",
			want: func(*config.Config) {},
		},
		{
			name: "a watch beside a central resolver", text: "cluster: {resolver: central, central: {addresses: [192.0.2.1]}, invalidate: true}",
			want: func(c *config.Config) {
				c.Cluster.Resolver, c.Cluster.Invalidate = config.ResolverCentral, true
				c.Cluster.Central.Addresses = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53")}
			},
		},
		{
			name: "a resolver with all that it may have", role: config.Resolver,
			text: "listen: {addresses: [0.0.0.0]}\ncluster: {endpoints: headless, pods: disabled, kubeconfig: /k, transferTo: [192.0.2.1]}\nadmin: {address: ''}",
			want: func(c *config.Config) {
				c.Listen.Addresses = []netip.Addr{netip.IPv4Unspecified()}
				c.Cluster.Endpoints, c.Cluster.Pods, c.Cluster.Kubeconfig = config.EndpointsHeadless, config.PodsDisabled, "/k"
				c.Cluster.TransferTo = []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}
				c.Admin.Address = netip.AddrPort{}
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := config.Parse([]byte(tt.text), tt.role)
			must(t, err)
			want := config.Default(tt.role)
			tt.want(&want)
			same(t, "Parse", want, got, plain())
			roundTrip(t, got, tt.role)
		})
	}
}

func TestDefaultOfRoles(t *testing.T) {
	t.Parallel()
	want := config.Default(config.Agent)
	want.Listen.Addresses = []netip.Addr{netip.MustParseAddr("::")}
	want.Cluster.Resolver, want.Cluster.Endpoints = config.ResolverLocal, config.EndpointsAll
	want.Admin.Address = netip.MustParseAddrPort("[::]:9253")
	same(t, "the resolver's defaults", want, config.Default(config.Resolver), plain())
}

func TestLoadResolvesPaths(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, tt := range []struct {
		name, text           string
		kubeconfig, manifest string
		snapshot             string
	}{
		{name: "manifests", text: "cluster: {manifests: ../objects}", manifest: filepath.Join(filepath.Dir(folder), "objects")},
		{name: "kubeconfig", text: "cluster: {kubeconfig: admin.conf}", kubeconfig: filepath.Join(folder, "admin.conf")},
		{name: "snapshot", text: "snapshot: {folder: ../kept}", snapshot: filepath.Join(filepath.Dir(folder), "kept")},
		{name: "absolute", text: "cluster: {manifests: /objects}", manifest: "/objects"},
		{name: "the folder itself", text: "cluster: {manifests: .}", manifest: folder},
		{name: "none", text: "cluster: {}"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(folder, tt.name+".yaml")
			must(t, os.WriteFile(file, []byte(tt.text), 0o600))
			want := with(func(c *config.Config) {
				c.Cluster.Kubeconfig, c.Cluster.Manifests, c.Snapshot.Folder = tt.kubeconfig, tt.manifest, tt.snapshot
			})
			got, err := config.Load(file, config.Agent)
			must(t, err)
			same(t, "Load", want, got, plain())
		})
	}
}

// TestLoadResolvesRelativePathOfFile cannot run beside other tests: it changes the working folder.
func TestLoadResolvesRelativePathOfFile(t *testing.T) {
	t.Chdir(t.TempDir())
	must(t, os.WriteFile("config.yaml", []byte("cluster: {manifests: objects}"), 0o600))
	here, err := os.Getwd()
	must(t, err)
	got, err := config.Load("config.yaml", config.Agent)
	must(t, err)
	if want := filepath.Join(here, "objects"); got.Cluster.Manifests != want {
		t.Errorf("manifests in %q, want %q", got.Cluster.Manifests, want)
	}
}

func TestCentralIsSet(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		central config.Central
		want    bool
	}{
		{name: "neither", central: config.Central{Connections: 2}, want: false},
		{name: "a service", central: config.Central{Service: config.ServiceName{Namespace: "a", Name: "b"}}, want: true},
		{name: "an address", central: config.Central{Addresses: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:53")}}, want: true},
	} {
		same(t, tt.name+": IsSet()", tt.want, tt.central.IsSet())
	}
}
