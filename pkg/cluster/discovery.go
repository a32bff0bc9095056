// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/discovery"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/upstream"
)

// serviceAddresses returns the addresses of the central resolver's Service, without a request to the API server: those of the
// configuration, or the one that the kubelet gives pods of the Service's namespace.
func serviceAddresses(central *config.Central) ([]netip.AddrPort, error) {
	if len(central.Addresses) > 0 {
		return central.Addresses, nil
	}
	if pod := os.Getenv("POD_NAMESPACE"); pod != central.Service.Namespace {
		return nil, &hint.Error{
			Err:  fmt.Errorf("cluster.central.headless: the address of %s is unknown in the namespace %q", central.Service, pod),
			Hint: "write its cluster IP in cluster.central.addresses instead of cluster.central.service",
		}
	}
	name := strings.ToUpper(strings.ReplaceAll(central.Service.Name, "-", "_")) + "_SERVICE_HOST"
	addr, err := netip.ParseAddr(os.Getenv(name))
	if err != nil {
		return nil, &hint.Error{
			Err:  fmt.Errorf("cluster.central.headless: the environment variable %s has no address of %s", name, central.Service),
			Hint: "create the Service, set enableServiceLinks: true in the pod, and start it again",
		}
	}
	return []netip.AddrPort{netip.AddrPortFrom(addr, dnsPort)}, nil
}

// dnsPort is the port of DNS, RFC 1035 section 4.2.
const dnsPort = 53

// headlessName returns the name of the headless Service, absolute.
func headlessName(cfg *config.Config) string {
	s := cfg.Cluster.Central.Headless
	return s.Name + "." + s.Namespace + ".svc." + cfg.ClusterDomain
}

// makeDiscovery sets c.Discovery, which fills c.Endpoints.
func (m *Maker) makeDiscovery(c *Cluster, cfg *config.Config) error {
	own, err := serviceAddresses(&cfg.Cluster.Central)
	if err != nil {
		return err
	}
	log := m.Log.With("service", cfg.Cluster.Central.Headless.String())
	endpoints := c.Endpoints
	settings := discovery.Config{
		Service: headlessName(cfg), Open: c.Central.Open, Zone: endpoints.Zone, Log: m.Log,
		Found: func(found []upstream.ServiceEndpoint) {
			if !endpoints.Set(found, own) {
				return
			}
			m.TargetChanged()
			addrs, _ := endpoints.Confirmed()
			log.Info("central endpoints updated", "count", len(addrs), "ready", addrs[:min(len(addrs), maxLogged)], "service_addresses", own)
		},
		Reported: func() bool { return false },
	}
	for _, target := range secureOf(&cfg.Cluster.Central).Targets(own) {
		settings.Servers = append(settings.Servers, target.Addr)
	}
	if push := c.Push; push != nil {
		settings.Reported = push.Reports
	}
	c.Discovery = discovery.New(settings)
	return nil
}
