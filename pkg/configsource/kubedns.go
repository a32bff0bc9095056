// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/convert"
	"github.com/nodecache/node-cache/pkg/filewatch"
	"github.com/nodecache/node-cache/pkg/hint"
)

// dataLink is the link that the kubelet swaps to change all files of a folder at once.
const dataLink = "..data"

// kubeDNSFiles returns the keys of a kube-dns ConfigMap.
func kubeDNSFiles() []string { return []string{"stubDomains", "upstreamNameservers", "federations"} }

// A kubeDNS reads the folder of a mounted kube-dns ConfigMap. A folder without the files has no stub domains: the mount of
// such a ConfigMap is optional.
type kubeDNS struct {
	*base

	report func(content)
	files  map[string]string // contents by file name at the last read; nil: it failed
	failed string            // text of the last error; empty: the last read succeeded
}

// readIfChanged reads the folder, and reports whether it changed.
func (k *kubeDNS) readIfChanged() (c content, changed bool) {
	data, err := readFolder(k.cfg.KubeDNS)
	switch {
	case err != nil && err.Error() == k.failed, err == nil && k.files != nil && maps.Equal(data, k.files):
		return content{}, false
	case err != nil:
		k.files, k.failed = nil, err.Error()
		return content{transient: true, err: &hint.Error{Err: err, Hint: "check that the kube-dns ConfigMap is mounted at the folder of --kube-dns"}}, true
	}
	k.files, k.failed = data, ""
	routes, notes, err := convert.KubeDNS(data)
	if err != nil {
		return content{err: k.invalid(err)}, true
	}
	for _, n := range notes {
		k.cfg.Log.Warn("kube-dns setting not supported", "file", n.File, "what", n.What, "why", n.Why, "hint", n.Hint)
	}
	return content{routes: routes}, true
}

// invalid returns a configuration error with one problem for each error that err joins.
func (k *kubeDNS) invalid(err error) error {
	all := []error{err}
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		all = several.Unwrap()
	}
	bad := &config.Error{Path: "kube-dns folder " + k.cfg.KubeDNS}
	for _, err := range all {
		bad.Problems = append(bad.Problems, config.Problem{What: err.Error(), Hint: "fix it; the previous configuration stays in use until then"})
	}
	return bad
}

// readFolder reads a consistent state of the files: those behind the kubelet's link, if there is one.
func readFolder(folder string) (map[string]string, error) {
	const attempts = 3 // the link may be swapped during a read
	for n := 1; ; n++ {
		from := folder
		if target, err := os.Readlink(filepath.Join(folder, dataLink)); err == nil {
			from = filepath.Join(folder, target)
			if filepath.IsAbs(target) {
				from = target
			}
		}
		data, err := readFiles(from)
		if err == nil || n == attempts || !errors.Is(err, fs.ErrNotExist) {
			return data, err
		}
	}
}

// readFiles reads the existing files of a folder.
func readFiles(folder string) (map[string]string, error) {
	data := map[string]string{}
	for _, name := range kubeDNSFiles() {
		text, err := filewatch.ReadFile(filepath.Join(folder, name), maxFile)
		switch {
		case err == nil:
			data[name] = string(text)
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("reading the kube-dns folder: %w", err)
		}
	}
	if _, err := os.Stat(folder); err != nil {
		return nil, fmt.Errorf("reading the kube-dns folder: %w", err)
	}
	return data, nil
}

// run reads the folder after each event, and periodically, until ctx ends.
func (k *kubeDNS) run(ctx context.Context) {
	paths := kubeDNSFiles()
	for i, name := range paths {
		paths[i] = filepath.Join(k.cfg.KubeDNS, name)
	}
	filewatch.Watch(ctx, filewatch.Config{
		Paths: paths, Log: k.cfg.Log,
		Check: func(bool) time.Duration {
			if c, changed := k.readIfChanged(); changed {
				k.report(c)
			}
			return 0
		},
		OnPanic: func(panicked any) {
			k.reset()
			k.report(content{err: panicError(k.action(), k.guard(k.action()).Recovered(ctx, panicked))})
		},
	})
}

// reset makes the next read report its result, even if nothing changed.
func (k *kubeDNS) reset() { k.files, k.failed = nil, "" }

func (k *kubeDNS) action() string { return "reading the kube-dns folder " + k.cfg.KubeDNS }

// merged merges routes into the configuration: they replace the upstreams of the same zone's route and keep its other
// keys. The result is a valid configuration.
func merged(cfg config.Config, routes []config.Route, folder string) (config.Config, error) {
	forward := make([]config.Route, len(cfg.Forward), len(cfg.Forward)+len(routes))
	copy(forward, cfg.Forward)
	for _, r := range routes {
		forward = overlay(forward, r, &cfg.Cache)
	}
	cfg.Forward = forward
	if _, err := config.Marshal(cfg); err != nil {
		if bad := (*config.Error)(nil); errors.As(err, &bad) {
			return config.Config{}, &config.Error{Path: "with the kube-dns folder " + folder, Problems: bad.Problems}
		}
		return config.Config{}, fmt.Errorf("merging the kube-dns folder %s into the configuration: %w", folder, err)
	}
	return cfg, nil
}

// overlay merges one route into a list.
func overlay(forward []config.Route, r config.Route, cache *config.Cache) []config.Route {
	for i := range forward {
		if forward[i].Zone == r.Zone {
			forward[i].To, forward[i].Bootstrap, forward[i].CA = r.To, nil, ""
			return forward
		}
	}
	r.MinTTL, r.MaxTTL, r.NegativeTTL = cache.MinTTL, cache.MaxTTL, cache.NegativeTTL
	return append(forward, r)
}
