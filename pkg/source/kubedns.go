// SPDX-License-Identifier: Apache-2.0

package source

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
)

const maxFile = 1 << 20 // bytes; a ConfigMap holds no more

// dataLink is what the kubelet swaps to change all files of a folder at once.
const dataLink = "..data"

// kubeDNSFiles are the keys of a kube-dns ConfigMap.
func kubeDNSFiles() []string { return []string{"stubDomains", "upstreamNameservers", "federations"} }

// A kubeDNS is the folder of a mounted kube-dns ConfigMap. A folder without the files is one without stub domains: such a
// ConfigMap is mounted if it exists.
type kubeDNS struct {
	source *Source
	folder string
	files  map[string]string // by file, what look read last; nil: the last look failed
	failed string            // why
}

// look reads the folder, unless it is as before; then the number of the content is 0.
func (k *kubeDNS) readIfChanged() (c content, changed bool) {
	data, err := readFolder(k.folder)
	switch {
	case err != nil && err.Error() == k.failed, err == nil && k.files != nil && maps.Equal(data, k.files):
		return content{}, false
	case err != nil:
		k.files, k.failed = nil, err.Error()
		return content{transient: true, err: &Error{Err: err, Hint: "see that the kube-dns ConfigMap is mounted at the folder of --kube-dns"}}, true
	}
	k.files, k.failed = data, ""
	routes, notes, err := convert.KubeDNS(data)
	if err != nil {
		return content{err: k.invalid(err)}, true
	}
	for _, n := range notes {
		k.source.cfg.Log.Warn("part of the kube-dns folder has no counterpart", "file", n.File, "what", n.What, "why", n.Why, "hint", n.Hint)
	}
	return content{routes: routes}, true
}

// bad is the error of one of the files, or of several.
func (k *kubeDNS) invalid(err error) error {
	all := []error{err}
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		all = several.Unwrap()
	}
	told := &config.Error{Path: "kube-dns folder " + k.folder}
	for _, err := range all {
		told.Problems = append(told.Problems, config.Problem{What: err.Error(), Hint: "the configuration before stays in use until it is mended"})
	}
	return told
}

// readFolder reads the files of one moment: those behind the link of the kubelet, if there is one.
func readFolder(folder string) (map[string]string, error) {
	const attempts = 3 // the link may be swapped while the files behind it are read
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

// readFiles reads the files of a folder, those that are there.
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

// run looks whenever something happens in the folder, and from time to time, until ctx ends.
func (k *kubeDNS) run(ctx context.Context) {
	paths := kubeDNSFiles()
	for i, name := range paths {
		paths[i] = filepath.Join(k.folder, name)
	}
	filewatch.Watch(ctx, filewatch.Config{
		Paths: paths, Log: k.source.cfg.Log,
		Check: func(bool) time.Duration {
			if c, changed := k.readIfChanged(); changed {
				k.source.report(&k.source.overlay, c)
			}
			return 0
		},
		OnPanic: func(panicked any, stack []byte) {
			k.reset()
			k.source.report(&k.source.overlay, content{err: k.source.panicError(k.action(), panicked, stack)})
		},
	})
}

// forget has the next look find something, whatever it is.
func (k *kubeDNS) reset() { k.files, k.failed = nil, "" }

func (k *kubeDNS) action() string { return "reading the kube-dns folder " + k.folder }

// merged lays routes over the configuration: the upstreams of a zone are those of its route, and what else is said of the
// zone stays. The result is one that could have been written as it is.
func merged(cfg config.Config, routes []config.Route, folder string) (config.Config, error) {
	if len(routes) == 0 {
		return cfg, nil
	}
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
		return config.Config{}, fmt.Errorf("laying the kube-dns folder %s over the configuration: %w", folder, err)
	}
	return cfg, nil
}

// overlay lays one route over a list of them.
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
