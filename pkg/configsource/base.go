// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/panics"
	"github.com/nodecache/node-cache/pkg/retry"
)

// Config configures a Source. Exactly one of File and ConfigMap is required.
type Config struct {
	File       string               // path
	ConfigMap  types.NamespacedName // its key node-cache.yaml holds the configuration
	Kubeconfig string               // a file, for the ConfigMap and for events; empty: the pod's service account
	KubeDNS    string               // folder of a mounted kube-dns ConfigMap, merged into the routes; empty: none
	Standby    string               // a file: while it says true, the configuration has standby; empty: none
	LastGood   string               // folder for the last good configuration, created if missing; empty: none is saved
	Role       config.Role
	Pod        types.NamespacedName // pod that Events are about; without namespace or name: none are written
	PodUID     string
	Node       string // node of the pod; may be empty
	UserAgent  string // empty: node-cache

	// Apply puts a configuration to use. If there is none, the error argument says why. If Apply returns an error, the running
	// configuration stays. Run makes one call at a time; of the changes during a call, it passes on only the latest. Required.
	Apply func(config.Config, error) (InUse, error)

	// Serving is closed once the agent serves, and its required names have resolved. Before that no configuration is saved as the last good one, since it may be
	// what prevents serving.
	Serving <-chan struct{}

	// UntilReload returns a context that ends when the file or the ConfigMap is to be read, and passed to Apply, even if it has
	// not changed; nil: never.
	UntilReload func(context.Context) (context.Context, context.CancelFunc)

	Log *slog.Logger     // nil: silent
	Now func() time.Time // required
}

// InUse is the configuration in use. It may differ from the one applied: some keys need a restart.
type InUse struct {
	Config     config.Config
	Generation uint64 // 1 at the start, and one more after each change

	NeedRestart []string // keys whose changed values apply only after a restart

	at time.Time // when it was put to use
}

// ParseObject parses NAMESPACE/NAME.
func ParseObject(text string) (types.NamespacedName, error) {
	namespace, name, _ := strings.Cut(text, "/")
	// Names begin with a letter or digit; a name of dots would change the API path.
	if namespace == "" || name == "" || namespace[0] == '.' || name[0] == '.' || strings.Contains(name, "/") || strings.ContainsAny(text, " ,=%?#\t\n") {
		return types.NamespacedName{}, fmt.Errorf("%q: not NAMESPACE/NAME", text)
	}
	return types.NamespacedName{Namespace: namespace, Name: name}, nil
}

// base has what all parts of a source need.
type base struct {
	cfg    Config
	panics atomic.Uint64
}

// Name returns the location of the configuration for messages.
func (b *base) Name() string {
	if b.cfg.File != "" {
		return b.cfg.File
	}
	return "configmap " + b.cfg.ConfigMap.String()
}

// readAction names the action for errors of load and run of the main part, so that both give the same error.
func (b *base) readAction() string { return "reading " + b.Name() }

// content is the content of the source, or of a part of it.
type content struct {
	config    config.Config  // zero for the other parts
	routes    []config.Route // routes of the kube-dns folder; nil for other parts
	standby   bool           // content of the standby file; false for other parts
	err       error          // why there is neither a configuration nor routes
	transient bool           // it may be the state between two steps of a writer
	version   uint64         // number of changes of all parts so far, set for the whole only
}

// retryInterval is the pause between attempts to apply a configuration that was unusable at the start, and to save a last good one.
const retryInterval = time.Minute

func stoppedTimer() *time.Timer {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return t
}

// After a panic, a part restarts, since the cause may be gone. The delay doubles with each further panic, up to lastRestartDelay.
const (
	firstRestartDelay = 5 * time.Second
	lastRestartDelay  = time.Minute
)

// panicError returns the error of a part that panicked.
func panicError(doing string, err error) error {
	return &hint.Error{Err: fmt.Errorf("%s: %w", doing, err), Hint: "the agent retries by itself; the running configuration stays"}
}

func (b *base) guard(doing string) panics.Guard {
	return panics.Guard{Where: "source", Log: b.cfg.Log.With("doing", doing), Count: &b.panics}
}

// recovering runs do. A panic in it becomes its error.
func (b *base) recovering(ctx context.Context, doing string, do func() error) error {
	err := b.guard(doing).Do(ctx, do)
	if errors.Is(err, panics.Err) {
		return panicError(doing, err)
	}
	return err
}

// runWithRestarts runs a part until ctx ends. After each panic, it calls broke with the error and restarts the part after
// a pause.
func (b *base) runWithRestarts(ctx context.Context, doing string, run func(context.Context) error, broke func(why error)) error {
	rest := firstRestartDelay
	for {
		began := b.cfg.Now()
		err := b.recovering(ctx, doing, func() error { return run(ctx) })
		if !errors.Is(err, panics.Err) {
			return err
		}
		broke(err)
		if b.cfg.Now().Sub(began) > lastRestartDelay {
			rest = firstRestartDelay
		}
		if retry.Sleep(ctx, rest) != nil {
			return nil //nolint:nilerr // it was asked to end
		}
		rest = min(2*rest, lastRestartDelay)
	}
}
