// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"net/netip"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/nodecache/node-cache/pkg/config"
)

// TestPodsAgreeWithConfigurations checks what a pod and the configuration that it is given have to say alike: where
// things are, who is probed, how much memory there is.
func TestPodsAgreeWithConfigurations(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		list := objects(t, s.text)
		configs := configurations(t, list)
		for _, w := range workloads(t, list) {
			cfg, has := configs[w.name]
			if !has {
				continue
			}
			t.Run(s.name+"/"+w.name, func(t *testing.T) {
				t.Parallel()
				checkAgreement(t, &w.spec, &cfg)
			})
		}
	}
}

func checkAgreement(t *testing.T, spec *corev1.PodSpec, cfg *config.Config) {
	t.Helper()
	c := &spec.Containers[0]
	checkPlaces(t, spec, c, cfg)
	checkProbes(t, spec, c, cfg)
	checkMemory(t, c, cfg)
	checkEnd(t, spec, c, cfg)
}

// configurations are those of a rendering by the name of their ConfigMap, which is that of the pods' object too.
func configurations(t *testing.T, list []*unstructured.Unstructured) map[string]config.Config {
	t.Helper()
	found := map[string]config.Config{}
	for _, o := range list {
		if text, is := configText(o); is {
			if !strings.HasPrefix(text, "# yaml-language-server: $schema=https://raw.githubusercontent.com/nodecache/node-cache/main/docs/configuration.schema.json\n") {
				t.Errorf("%s does not tell editors its schema", id(o))
			}
			found[o.GetName()] = parsed(t, o, text)
		}
	}
	return found
}

// checkPlaces looks for a mount that can be written behind each path that is written to.
func checkPlaces(t *testing.T, spec *corev1.PodSpec, c *corev1.Container, cfg *config.Config) {
	t.Helper()
	if !cfg.Intercept.Manage != !spec.HostNetwork {
		t.Errorf("intercept.manage is %t, hostNetwork %t", cfg.Intercept.Manage, spec.HostNetwork)
	}
	source := func(file string) *corev1.Volume {
		t.Helper()
		for _, m := range c.VolumeMounts {
			if inside(m.MountPath, file) && !m.ReadOnly && m.SubPath == "" {
				i := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
				return &spec.Volumes[i]
			}
		}
		t.Errorf("no volume that can be written holds %s", file)
		return &corev1.Volume{}
	}
	lastGood := argument(c.Args, "--last-good")
	if v := source(lastGood); spec.HostNetwork && v.HostPath == nil {
		t.Errorf("%s does not outlive the pod", lastGood)
	}
	if cfg.Snapshot.Folder != "" {
		checkSnapshot(t, spec, source(cfg.Snapshot.Folder), cfg)
	}
	if cfg.Handover.Socket != "" && source(cfg.Handover.Socket).HostPath == nil {
		t.Errorf("another pod has no way to %s", cfg.Handover.Socket)
	}
	if cfg.Admin.Socket != "" && source(cfg.Admin.Socket).EmptyDir == nil {
		t.Errorf("%s is not the pod's own", cfg.Admin.Socket)
	}
	for _, e := range c.Env {
		if e.Name == "NODE_CACHE_ADMIN" && e.Value != "unix:"+cfg.Admin.Socket {
			t.Errorf("NODE_CACHE_ADMIN is %s, and the socket at %s", e.Value, cfg.Admin.Socket)
		}
	}
}

// checkSnapshot looks whether an agent's snapshot is there for the next pod. A resolver's is for the next container, and the
// kubelet ends a pod that has more in a volume than its limit: a snapshot is there twice while one is written.
func checkSnapshot(t *testing.T, spec *corev1.PodSpec, v *corev1.Volume, cfg *config.Config) {
	t.Helper()
	if spec.HostNetwork && v.HostPath == nil {
		t.Errorf("%s does not outlive the pod", cfg.Snapshot.Folder)
	}
	if v.EmptyDir == nil || v.EmptyDir.SizeLimit == nil {
		return
	}
	if need := 2 * cfg.Snapshot.Size; v.EmptyDir.SizeLimit.Value() <= need {
		t.Errorf("volume %s may hold %s, and snapshots need %d bytes", v.Name, v.EmptyDir.SizeLimit, need)
	}
}

// inside reports whether a file is in a folder, or the folder itself.
func inside(folder, file string) bool {
	return strings.HasPrefix(path.Clean(file)+"/", path.Clean(folder)+"/")
}

// argument gives what follows a flag.
func argument(args []string, flag string) string {
	if i := slices.Index(args, flag); i >= 0 && i+1 < len(args) {
		return args[i+1]
	}
	return ""
}

// checkProbes looks whether the kubelet asks where the admin server listens, and with patience.
func checkProbes(t *testing.T, spec *corev1.PodSpec, c *corev1.Container, cfg *config.Config) {
	t.Helper()
	pages := map[string]*corev1.Probe{"/livez": c.LivenessProbe}
	if spec.HostNetwork { // of two pods at one address only their sockets tell which is ready
		for command, p := range map[string]*corev1.Probe{"/node-cache ready --live": c.StartupProbe, "/node-cache ready": c.ReadinessProbe} {
			if p == nil || p.Exec == nil || strings.Join(p.Exec.Command, " ") != command {
				t.Errorf("no probe by %s", command)
			}
		}
	} else {
		pages["/readyz"] = c.ReadinessProbe
	}
	for name, p := range pages {
		if p == nil || p.HTTPGet == nil || p.HTTPGet.Path != name {
			t.Errorf("no probe of %s", name)
			continue
		}
		port := p.HTTPGet.Port.IntValue()
		for _, known := range c.Ports {
			if known.Name == p.HTTPGet.Port.StrVal {
				port = int(known.ContainerPort)
			}
		}
		if port != int(cfg.Admin.Address.Port()) {
			t.Errorf("%s is asked at port %d, and served at %s", name, port, cfg.Admin.Address)
		}
		if at := cfg.Admin.Address.Addr(); spec.HostNetwork && !serves(at, p.HTTPGet.Host, cfg.Listen.Addresses) {
			t.Errorf("%s is asked at %q, and served at %s", name, p.HTTPGet.Host, at)
		}
	}
	if p := c.LivenessProbe; p != nil && (p.TimeoutSeconds < 5 || p.PeriodSeconds*p.FailureThreshold < 60) {
		t.Errorf("liveness: %d s for an answer, %d times every %d s: a busy node would lose its DNS", p.TimeoutSeconds, p.FailureThreshold, p.PeriodSeconds)
	}
}

// serves reports whether a server at an address, which may stand for all, is asked at a host that is this node's alone.
func serves(at netip.Addr, host string, listen []netip.Addr) bool {
	asked, err := netip.ParseAddr(host)
	return err == nil && slices.Contains(listen, asked) && (at == asked || at.IsUnspecified() && (at.Is6() || asked.Is4()))
}

// checkMemory holds the limit to what docs/memory.md asks for.
func checkMemory(t *testing.T, c *corev1.Container, cfg *config.Config) {
	t.Helper()
	need := cfg.Cache.Size + 32<<20
	if cfg.Snapshot.Folder != "" {
		need += 2 * cfg.Snapshot.Size
	}
	// 1,000 Services, which every cluster may come to have.
	if need += 3 << 20; c.Resources.Limits.Memory().Value() < need {
		t.Errorf("the limit is %s, and %d MiB are needed", c.Resources.Limits.Memory(), need>>20)
	}
	if request := c.Resources.Requests.Memory(); request.Cmp(*c.Resources.Limits.Memory()) > 0 {
		t.Errorf("%s are requested, more than the limit of %s", request, c.Resources.Limits.Memory())
	}
}

// checkEnd looks whether there is time enough to stop in order.
func checkEnd(t *testing.T, spec *corev1.PodSpec, c *corev1.Container, cfg *config.Config) {
	t.Helper()
	// docs/node.md and docs/warm-restart.md: 5 s for the lease, the deadline and one for what was accepted, 5 s for what is
	// removed, 3 s for the snapshot.
	need := 5*time.Second + cfg.Limits.Deadline + time.Second + 5*time.Second + 3*time.Second
	if c.Lifecycle != nil && c.Lifecycle.PreStop != nil && c.Lifecycle.PreStop.Sleep != nil {
		need += time.Duration(c.Lifecycle.PreStop.Sleep.Seconds) * time.Second
	}
	if got := time.Duration(*spec.TerminationGracePeriodSeconds) * time.Second; got < need {
		t.Errorf("%s to stop, and %s are needed", got, need)
	}
}

// TestRollOut checks that no node is without an agent while a new version comes, and that two can be there at a time.
func TestRollOut(t *testing.T) {
	t.Parallel()
	for _, s := range sources(t) {
		list := objects(t, s.text)
		for _, d := range all[appsv1.DaemonSet](t, list, "DaemonSet") {
			if d.Name != "node-cache" {
				continue
			}
			r := d.Spec.UpdateStrategy.RollingUpdate
			if r == nil || r.MaxSurge.String() == "0" || r.MaxUnavailable.String() != "0" {
				t.Errorf("%s: an update takes the old agent away first: %+v", s.name, r)
			}
			if cfg := configurations(t, list)["node-cache"]; cfg.Handover.Socket == "" && d.Spec.Template.Spec.HostNetwork {
				t.Errorf("%s: two agents overlap, and neither hands anything over", s.name)
			}
		}
		for _, d := range all[appsv1.Deployment](t, list, "Deployment") {
			if r := d.Spec.Strategy.RollingUpdate; r.MaxUnavailable.String() != "0" || r.MaxSurge.String() == "0" {
				t.Errorf("%s: an update takes a resolver away first: %+v", s.name, r)
			}
		}
	}
}
