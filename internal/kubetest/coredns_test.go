// SPDX-License-Identifier: Apache-2.0

package kubetest_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

const corefile = `cluster.local in-addr.arpa {
	bind 127.0.0.1
	errors
	ready {$READY}
	kubernetes cluster.local in-addr.arpa {
		kubeconfig {$KUBECONFIG}
	}
}
`

func TestCoreDNSAnswers(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t, kubetest.Options{Controllers: true})
	set := service("db")
	set.Spec.ClusterIP, set.Spec.Selector = corev1.ClusterIPNone, map[string]string{"app": "db"}
	kubetest.Apply(t, c, kubetest.Namespace("shop"), kubetest.Node("node-1", "zone-a"), set, pod(0))
	server := kubetest.StartCoreDNS(t, c, corefile).Addr()

	tests := []struct {
		name  string
		qtype uint16
		want  string
	}{
		{name: "db-0.db.shop.svc.cluster.local.", qtype: dns.TypeA, want: "10.1.0.1"},
		{name: "1.0.1.10.in-addr.arpa.", qtype: dns.TypePTR, want: "db-0.db.shop.svc.cluster.local."},
		{name: "kubernetes.default.svc.cluster.local.", qtype: dns.TypeA, want: "10.96.0.1"},
	}
	for _, transport := range []string{"udp", "tcp"} {
		client := dns.Client{Net: transport}
		for _, tt := range tests {
			var got string
			proctest.Eventually(t, limit, tt.name+" over "+transport, func() bool {
				r, _, err := client.Exchange(new(dns.Msg).SetQuestion(tt.name, tt.qtype), server.String())
				if err != nil {
					t.Fatal(err)
				}
				got = r.String()
				return len(r.Answer) == 1 && dns.Field(r.Answer[0], 1) == tt.want
			}, func() string { return got })
		}
	}
}

func TestCoreDNSWantsACorefileItCanBeAskedWith(t *testing.T) {
	t.Parallel()
	var c kubetest.Cluster
	_, err := c.LaunchCoreDNS(t.Context(), t.TempDir(), "cluster.local {\n\tbind 127.0.0.1\n}\n")
	if err == nil {
		t.Fatal("a Corefile without the plugin ready is taken")
	}
	if diff := cmp.Diff(`reading a Corefile: it does not say "ready {$READY}"`, err.Error()); diff != "" {
		t.Errorf("error (-want +got):\n%s", diff)
	}
}

func TestSilenceThroughAProxy(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t, kubetest.Options{})
	p := kubetest.StartProxy(t, c)
	config := c.Config(kubetest.Admin)
	config.Host = "https://" + p.Addr().String()
	has := services(t, config)
	kubetest.Apply(t, c, kubetest.Namespace("shop"), service("first"))
	proctest.Eventually(t, limit, "the first service is seen", func() bool { return has("first") })

	p.Freeze()
	before := p.Traffic()
	kubetest.Apply(t, c, service("second")) // past the proxy
	if has("second") || p.Traffic() != before {
		t.Errorf("through a frozen proxy: traffic went from %+v to %+v", before, p.Traffic())
	}
	p.Resume()
	proctest.Eventually(t, limit, "the second service is seen", func() bool { return has("second") })
	if after := p.Traffic(); after.ToClient <= before.ToClient || after.Connections != before.Connections {
		t.Errorf("traffic: got %+v after %+v, want more bytes on the same connection", after, before)
	}
}
