// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/pkg/config"
)

var update = flag.Bool("update", false, "write what is made from other files")

// TestValuesSchema checks that the schema's definition of a configuration is that of docs/configuration.schema.json.
func TestValuesSchema(t *testing.T) {
	t.Parallel()
	path := filepath.Join(folder, "chart/values.schema.json")
	text, err := os.ReadFile(path)
	must(t, err)
	var schema map[string]any
	must(t, json.Unmarshal(text, &schema))
	schema["$defs"] = map[string]any{"config": definition(t)}
	var want bytes.Buffer
	encoder := json.NewEncoder(&want)
	encoder.SetIndent("", " ")
	encoder.SetEscapeHTML(false)
	must(t, encoder.Encode(schema))
	if *update {
		if err := os.WriteFile(path, want.Bytes(), 0o644); err != nil { //nolint:gosec // it is source
			t.Fatal(err)
		}
		return
	}
	same(t, "values.schema.json is not up to date: go test ./test/manifests -run TestValuesSchema -update", want.String(), string(text))
}

// definition is the schema of a configuration, which pkg/config makes.
func definition(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile("../../docs/configuration.schema.json")
	must(t, err)
	var schema map[string]any
	must(t, json.Unmarshal(text, &schema))
	delete(schema, "$schema")
	delete(schema, "title")
	return schema
}

// TestValuesRefused plants mistakes of the kind that people make.
func TestValuesRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		set  string
		want []string // in what helm says
	}{
		{"a value that is not known", "imagee.tag=v1", []string{"additional properties 'imagee' not allowed"}},
		{"a value at the wrong depth", "cache.size=128Mi", []string{"additional properties 'cache' not allowed"}},
		{"a key of the configuration that is not known", "config.agent.cache.sise=1Mi", []string{"'/config/agent/cache'", "'sise' not allowed"}},
		{"a key of the resolver's that is not known", "config.resolver.cash.size=1Mi", []string{"'/config/resolver'", "'cash' not allowed"}},
		{"a word of the configuration that is mistyped", "config.agent.cluster.resolver=locla", []string{"'/config/agent/cluster/resolver'", "'none', 'local', 'central'"}},
		{"a key in a list of the configuration", "config.agent.forward[0].zoen=.", []string{"'/config/agent/forward/0'", "'zoen' not allowed"}},
		{"a word for a number", "config.agent.listen.port=dns", []string{"'/config/agent/listen/port'", "got string, want integer"}},
		{"a word for a list", "config.agent.listen.addresses=169.254.20.10", []string{"'/config/agent/listen/addresses'", "got string, want array"}},
		{"a word for a switch", "monitoring.enabled=yes please", []string{"'/monitoring/enabled'", "got string, want boolean"}},
		{"a word that is none of two", "config.watch=API", []string{"'/config/watch'", "'file', 'api'"}},
		{"a variant that there is not", "image.variant=alpine", []string{"'/image/variant'", "'', 'iptables'"}},
		{"a digest that is none", "image.digest=v0.7.0", []string{"'/image/digest'", "does not match pattern"}},
		{"a limit that is none", "resources.limits.memory=lots", []string{"'/resources/limits/memory'", "does not match pattern"}},
		{"a low limit for CPU", "resources.limits.cpu=100m", []string{"resources.limits.cpu: 100m: with so little", "200m at least"}},
		{"a low limit for CPU in cores", "resources.limits.cpu=0.199", []string{"resources.limits.cpu: 0.199: with so little"}},
		{"a low limit for the resolver's CPU", "resolver.enabled=true,resolver.resources.limits.cpu=199m", []string{"resolver.resources.limits.cpu: 199m: with so little"}},
		{"a limit for CPU that is none", "resources.limits.cpu=two", []string{"'/resources/limits/cpu'", "does not match pattern"}},
		{"no time to stop in order", "terminationGracePeriodSeconds=17", []string{"terminationGracePeriodSeconds: 17 is too little", "handed over", "5 s for the lease, 4s (config.agent.limits.deadline)", "18 at least"}},
		{"no time for a long deadline", "config.agent.limits.deadline=16500ms", []string{"terminationGracePeriodSeconds: 30 is too little", "16500ms", "31 at least"}},
		{"no time at all", "terminationGracePeriodSeconds=0", []string{"'/terminationGracePeriodSeconds'", "minimum: got 0, want 1"}},
		{"a deadline that is none", "config.agent.limits.deadline=5sec", []string{`config.agent.limits.deadline: "5sec": not a duration`}},
		{"a port beyond the last", "config.agent.listen.port=65536", []string{"'/config/agent/listen/port'", "maximum: got 65,536, want 65,535"}},
		{"port 0", "config.agent.listen.port=0", []string{"'/config/agent/listen/port'", "minimum: got 0, want 1"}},
		{"a port of the resolver beyond the last", "resolver.enabled=true,config.resolver.listen.port=70000", []string{"'/config/resolver/listen/port'", "maximum: got 70,000, want 65,535"}},
		{"an admin port beyond the last", "config.agent.admin.address=169.254.20.10:92530", []string{`config.agent.admin.address: "169.254.20.10:92530": no port has the number 92530: they go from 1 to 65535`}},
		{"an admin port far beyond the last", "config.agent.admin.address=169.254.20.10:99999999999999999999", []string{"no port has the number 99999999999999999999"}},
		{"admin port 0", "config.agent.admin.address=169.254.20.10:0", []string{"config.agent.admin.address:", "no port has the number 0:"}},
		{"a metrics port beyond the last", "monitoring.enabled=true,monitoring.address=0.0.0.0:65536", []string{`monitoring.address: "0.0.0.0:65536": no port has the number 65536`}},
		{"a port of the resolver's admin server beyond the last", "resolver.enabled=true,config.resolver.admin.address=[::]:99999", []string{`config.resolver.admin.address: "[::]:99999": no port has the number 99999`}},
		{"an admin server at the port of the queries", "config.agent.admin.address=169.254.20.10:53", []string{"config.agent.admin.address: port 53 is config.agent.listen.port, at the same address"}},
		{"metrics at the port of the queries", "monitoring.enabled=true,monitoring.address=0.0.0.0:53", []string{"monitoring.address: port 53 is config.agent.listen.port, at the same address"}},
		{"the resolver's admin server at the port of the queries", "resolver.enabled=true,config.resolver.admin.address=[::]:53", []string{"config.resolver.admin.address: port 53 is config.resolver.listen.port"}},
		{"an admin server at one node's address", "config.agent.admin.address=192.0.2.1:9253", []string{"config.agent.admin.address: 192.0.2.1 is not an address of every node", "(169.254.20.10)"}},
		{"metrics over IPv4 where agents have IPv6", "monitoring.enabled=true,monitoring.address=0.0.0.0:9253,config.agent.listen.addresses={fd00::10}", []string{"monitoring.address: 0.0.0.0 is for IPv4", "has fd00::10 only", `write "[::]:9253"`}},
		{"no address to listen at", "config.agent.listen.addresses={}", []string{"config.agent.listen.addresses: empty"}},
		{"a name to listen at", "config.agent.listen.addresses={dns.example}", []string{`config.agent.listen.addresses: "dns.example": not an IP address`}},
		{"a resolver whose admin server only it can reach", "resolver.enabled=true,config.resolver.admin.address=127.0.0.1:9253", []string{"config.resolver.admin.address: 127.0.0.1 is not the pod's address"}},
		{"a resolver whom only it can ask", "resolver.enabled=true,config.resolver.listen.addresses={127.0.0.1}", []string{"config.resolver.listen.addresses: 127.0.0.1 is not the pod's address"}},
		{"a resolver with a link", "resolver.enabled=true,config.resolver.interface.manage=true", []string{"config.resolver.interface.manage: a resolver has neither link nor rules"}},
		{"a resolver with a successor", "resolver.enabled=true,config.resolver.handover.socket=/run/handover.sock", []string{"config.resolver.handover.socket: a resolver has"}},
		{"a folder nowhere in the resolver's pod", "resolver.enabled=true,config.resolver.snapshot.folder=/run/node-cache", []string{"config.resolver.snapshot.folder: /run/node-cache is not in /var/lib/node-cache,"}},
		{"a socket nowhere in the resolver's pod", "resolver.enabled=true,config.resolver.admin.socket=/var/lib/node-cache-admin.sock", []string{"config.resolver.admin.socket: /var/lib/node-cache-admin.sock is not in /var/lib/node-cache,"}},
		{"a resolver that is not installed", "config.agent.cluster.central.service=kube-system/node-cache-resolver", []string{"config.agent.cluster.central.service: kube-system/node-cache-resolver is made with resolver.enabled only"}},
		{"a resolver that is installed elsewhere", "resolver.enabled=true,config.agent.cluster.central.service=dns/node-cache-resolver", []string{"this release makes kube-system/node-cache-resolver"}},
		{"a CA of a resolver without TLS", "resolver.enabled=true,resolver.tls.ca=ca", []string{"resolver.tls.ca: no resolver answers over TLS: set resolver.enabled and resolver.tls.secret too"}},
		{"a CA without a resolver", "resolver.tls.secret=tls,resolver.tls.ca=ca", []string{"resolver.tls.ca: no resolver answers over TLS"}},
		{
			"its endpoints elsewhere", "resolver.enabled=true,config.agent.cluster.central.service=kube-system/node-cache-resolver,config.agent.cluster.central.headless=dns/node-cache-resolvers",
			[]string{"this release makes kube-system/node-cache-resolvers"},
		},
		{"more memory requested than allowed", "resources.limits.memory=144Mi,resources.requests.memory=256Mi", []string{"resources.requests.memory: 256Mi is more than resources.limits.memory, 144Mi"}},
		{"more memory requested than allowed for the resolver", "resolver.enabled=true,resolver.resources.limits.memory=100Mi,resolver.resources.requests.memory=1G", []string{"resolver.resources.requests.memory: 1G is more than resolver.resources.limits.memory, 100Mi"}},
		{"iptables without its programs", "config.agent.intercept.backend=iptables", []string{"config.agent.intercept.backend: iptables: the default image has no iptables", "image.variant"}},
		{"a variant as part of the tag", "image.tag=v0.7.0-iptables", []string{"image.tag: v0.7.0-iptables: image.variant: iptables adds -iptables"}},
		{"a tag in the repository", "image.repository=example.com/node-cache:v0.7.0", []string{`image.repository: "example.com/node-cache:v0.7.0": not the name of an image alone`}},
		{"a URL for a repository", "image.repository=https://example.com/node-cache", []string{"image.repository:", "not the name of an image alone"}},
		{"a tag that is none", "image.tag=v1 beta", []string{`image.tag: "v1 beta": not a tag`}},
		{"a volume twice", "extraVolumes[0].name=run,extraVolumes[0].emptyDir.medium=", []string{"extraVolumes: run: the chart has a volume of this name"}},
		{"a mount twice", "extraVolumeMounts[0].name=more,extraVolumeMounts[0].mountPath=/etc/node-cache/", []string{"extraVolumeMounts: /etc/node-cache/: the chart mounts something there"}},
		{"too little memory", "config.agent.cache.size=256Mi,resources.limits.memory=144Mi", []string{"resources.limits.memory: 144Mi is too little", "320Mi"}},
		{"too little memory for the resolver", "resolver.enabled=true,resolver.resources.limits.memory=64Mi", []string{"resolver.resources.limits.memory: 64Mi is too little", "96Mi"}},
		{"a size with a unit that there is not", "config.agent.cache.size=64MB", []string{`config.agent.cache.size: "64MB": not a size`}},
		{"a surge without a hand-over", "config.agent.handover.socket=", []string{"updateStrategy.maxSurge: 1: without config.agent.handover.socket"}},
		{"a redirection to agents of the node", "localRedirectPolicy=true", []string{"localRedirectPolicy: true: the agents have nothing of the node: not with config.agent.interface.manage,"}},
		{"namespaces that opt in, of pods that are in", "optIn=true,config.agent.intercept.mode=transparent", []string{"optIn: true: all pods ask the agents already"}},
		{"no admin server", "config.agent.admin.address=", []string{"config.agent.admin.address: empty"}},
		{"an admin server without a port", "config.agent.admin.address=169.254.20.10", []string{`config.agent.admin.address: "169.254.20.10": not an IP address and a port`}},
		{"an admin server by name", "config.agent.admin.address=localhost:9253", []string{`config.agent.admin.address: "localhost:9253": not an IP address and a port`}},
		{"no socket for the startup probe", "config.agent.admin.socket=", []string{"config.agent.admin.socket: empty: the startup and readiness probes ask it"}},
		{"no section admin", "config.agent.admin=null", []string{"config.agent.admin.socket: empty: the startup and readiness probes ask it"}},
		{"a socket nowhere", "config.agent.handover.socket=/run/handover.sock", []string{"config.agent.handover.socket: /run/handover.sock is not in /run/node-cache, and the pod can write to no other"}},
		{"a folder nowhere", "config.agent.snapshot.folder=/run/node-cache-too", []string{"config.agent.snapshot.folder: /run/node-cache-too is not in /run/node-cache,"}},
		{"a socket that two pods would share", "config.agent.admin.socket=/run/node-cache/admin.sock", []string{"config.agent.admin.socket: /run/node-cache/admin.sock is not in /run/pod,"}},
		{"no surge and no gap", "updateStrategy.maxSurge=0", []string{"updateStrategy: maxSurge 0 and maxUnavailable 0: Kubernetes takes one of them"}},
		{"surge and gap", "updateStrategy.maxUnavailable=10%", []string{"updateStrategy: maxSurge 1 and maxUnavailable 10%: Kubernetes takes one of them"}},
		{"a user of one's own", "securityContext.runAsUser=1000", []string{"securityContext.runAsUser: the chart sets all but appArmorProfile, seLinuxOptions, seccompProfile"}},
		{"fewer capabilities", "securityContext.capabilities.add={}", []string{"securityContext.capabilities: the chart sets"}},
		{"a privileged agent", "securityContext.privileged=true", []string{"securityContext.privileged: the chart sets"}},
		{"a privileged resolver", "resolver.enabled=true,resolver.securityContext.privileged=true", []string{"resolver.securityContext.privileged: the chart sets"}},
		{"an SELinux option that there is not", "securityContext.seLinuxOptions.typ=spc_t", []string{"'/securityContext/seLinuxOptions'", "'typ' not allowed"}},
		{"a variable of the chart's", "extraEnv[0].name=NODE_NAME,extraEnv[0].value=x", []string{"extraEnv: NODE_NAME: the chart sets this variable"}},
		{"a variable of the chart's for the resolver", "resolver.enabled=true,resolver.extraEnv[0].name=POD_UID", []string{"resolver.extraEnv: POD_UID: the chart sets this variable"}},
		{"a label of the chart's for all", "commonLabels.app\\.kubernetes\\.io/name=dns", []string{"commonLabels: app.kubernetes.io/name: the chart sets this label"}},
		{"a label of the chart's for pods", "podLabels.app\\.kubernetes\\.io/name=dns", []string{"podLabels: app.kubernetes.io/name: the chart sets this label"}},
		{"another name", "nameOverride=dns", []string{"additional properties 'nameOverride' not allowed"}},
		{"another full name", "fullnameOverride=dns", []string{"additional properties 'fullnameOverride' not allowed"}},
		{"no configuration", "config.agent=null", []string{"'/config'", "missing property 'agent'"}},
		{"a scrape without a token", "monitoring.enabled=true,monitoring.scrapeAnnotations=true", []string{"monitoring.podMonitoring, monitoring.scrapeAnnotations: such a scrape has no token: set monitoring.address"}},
		{"an address for all beside TLS", "monitoring.enabled=true,monitoring.address=0.0.0.0:9253,monitoring.scrapeAnnotations=true,config.agent.admin.tls.address=0.0.0.0:9254", []string{"monitoring.address: with config.agent.admin.tls.address, /metrics there is for clients with the token of `node-cache page` only"}},
		{"a resolver that Prometheus may not read", "monitoring.enabled=true,resolver.enabled=true,config.resolver.admin.tls.address=0.0.0.0:9254", []string{"config.resolver.admin.tls.address: Prometheus reads the resolvers without TLS"}},
		{"an alert that there is not", "monitoring.enabled=true,monitoring.alerts.NodeCacheSlo.enabled=false", []string{"monitoring.alerts.NodeCacheSlo: no alert has this name"}},
		{"a label that Prometheus does not take", "monitoring.enabled=true,monitoring.clusterLabel=k8s-cluster", []string{"'/monitoring/clusterLabel'", "does not match pattern"}},
		{"a threshold where there is none", "monitoring.enabled=true,monitoring.alerts.NodeCacheDown.threshold=1", []string{"monitoring.alerts.NodeCacheDown.threshold: this alert has no threshold"}},
		{"no resources", "resources=null", []string{"missing property 'resources'"}},
		{"no admin server of the resolver", "resolver.enabled=true,config.resolver.admin.address=", []string{"config.resolver.admin.address: empty"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := template(t, "--set", tt.set)
			if err == nil {
				t.Fatalf("helm template --set %s: no error", tt.set)
			}
			for _, want := range tt.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("helm template --set %s does not say %q:\n%v", tt.set, want, err)
				}
			}
		})
	}
}

// TestValuesAccepted is the other side: what is unusual and right.
func TestValuesAccepted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		set  string
		want func(c *config.Config) any
		got  any
	}{
		{"a switch without quotes", "config.agent.cache.nxdomainCut=false", func(c *config.Config) any { return c.Cache.NXDomainCut }, false},
		{"a size in bytes", "config.agent.cache.size=67108864", func(c *config.Config) any { return c.Cache.Size }, int64(64 << 20)},
		{"a large number", "config.agent.limits.waiting=3000000", func(c *config.Config) any { return c.Limits.Waiting }, 3_000_000},
		{"a list of fallbacks", "config.agent.intercept.fallback={192.0.2.1}", func(c *config.Config) any { return len(c.Intercept.Fallback.Addresses) }, 1},
		{"a folder of one's own", "config.agent.snapshot.folder=/data/snapshot,extraVolumeMounts[0].name=data,extraVolumeMounts[0].mountPath=/data/", func(c *config.Config) any { return c.Snapshot.Folder }, "/data/snapshot"},
		{"a registry with a port", "image.repository=registry.example:5000/dns/node-cache,image.tag=v0.7.0_1.x", func(c *config.Config) any { return c.Listen.Port }, uint16(53)},
		{"another deadline, and time for it", "config.agent.limits.deadline=0m58.5s500ms,terminationGracePeriodSeconds=73", func(c *config.Config) any { return c.Listen.Port }, uint16(53)},
		{"a limit for CPU where one must be", "resources.limits.cpu=500m,resolver.enabled=true,resolver.resources.limits.cpu=0.2", func(c *config.Config) any { return c.Listen.Port }, uint16(53)},
		{"an address in other letters", "config.agent.listen.addresses={fd00::1A},config.agent.admin.address=[FD00::1a]:9253", func(c *config.Config) any { return c.Admin.Address.Addr() == c.Listen.Addresses[0] }, true},
		{"the last port", "config.agent.admin.address=127.0.0.1:65535", func(c *config.Config) any { return c.Admin.Address.Port() }, uint16(65535)},
		{"the port of the queries at another address", "config.agent.admin.address=127.0.0.1:53", func(c *config.Config) any { return c.Admin.Address.Port() }, uint16(53)},
		{"a default by null", "config.agent.snapshot=null,config.agent.cache.size=1Mi", func(c *config.Config) any { return c.Snapshot.Folder }, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, o := range objects(t, chart(t, "--set", tt.set)) {
				if text, is := configText(o); is {
					cfg := parsed(t, o, text)
					if diff := cmp.Diff(tt.got, tt.want(&cfg)); diff != "" {
						t.Errorf("--set %s (-want +got):\n%s", tt.set, diff)
					}
				}
			}
		})
	}
}
