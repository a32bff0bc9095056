// SPDX-License-Identifier: Apache-2.0

package configsource

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/hint"
	"github.com/nodecache/node-cache/pkg/remote"
	"github.com/nodecache/node-cache/pkg/retry"
	"github.com/nodecache/node-cache/pkg/watch"
)

// Key is the key of the configuration in a ConfigMap.
const Key = "node-cache.yaml"

const (
	// Timeouts of Load for the API server: with a last good configuration, and without one.
	loadTimeout           = 5 * time.Second
	loadTimeoutNoFallback = 30 * time.Second
	answerLimit           = 10 * time.Second // timeout for a list, and for the start of a watch

	// A watch lasts four to five minutes, then the next one resumes. A silent watch is detected by then at the latest, a dead
	// connection within 45 s.
	watchMinSeconds    = 240
	watchJitterSeconds = 60 // a random part of this is added to watchMinSeconds
	watchEndGrace      = 10 * time.Second

	// A server that answers only every other request makes the ConfigMap unreadable again and again. After flipBurst failures, the log
	// has one failure and its recovery per flipEvery.
	flipBurst = 4
	flipEvery = 30 * time.Second

	minWatchInterval = time.Second // pause after a watch that ended within this time
)

// A configMap reads the configuration from a ConfigMap. It has at most one request in flight.
type configMap struct {
	*base

	api      *api
	report   func(content)
	wait     time.Duration // the longest that load waits
	requests atomic.Uint64

	logs *rate.Limiter // limits the log lines about failures

	mu        sync.Mutex  // guards the following fields
	readError *hint.Error // why the object cannot be read; nil: it can
	logged    bool        // a failure was logged, and its recovery was not

	// Only load uses the following fields, and after it only run.
	version string // resource version to watch from; empty: list first
	exists  bool   // the object existed at the last read
	text    string // text of the key at the last read; empty also if it is missing or too large, which is an error
	pause   retry.Backoff
}

// load implements [configReader]. It waits for a missing object as for a server that is down.
func (m *configMap) load(ctx context.Context) (content, error) {
	limited, cancel := context.WithTimeout(ctx, m.wait)
	defer cancel()
	for {
		c, err := m.list(limited)
		if err == nil && !c.transient {
			return c, nil
		}
		if limited.Err() == nil && retry.Sleep(limited, pauseAfter(&m.pause, err)) == nil {
			continue
		}
		m.pause.Reset()
		return c, err
	}
}

// run implements [configReader].
func (m *configMap) run(ctx context.Context) error {
	defer m.api.close()
	for ctx.Err() == nil {
		began := m.cfg.Now()
		m.pause.Begin()
		err := m.listAndWatch(ctx)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			_ = retry.Sleep(ctx, pauseAfter(&m.pause, err))
			continue
		}
		if m.cfg.Now().Sub(began) < minWatchInterval {
			_ = retry.Sleep(ctx, minWatchInterval)
		}
	}
	return nil
}

// reset implements [configReader].
func (m *configMap) reset() { m.version, m.exists, m.text = "", false, "" }

// listAndWatch lists, if needed, and watches until the watch ends. After an error, it resumes if possible.
func (m *configMap) listAndWatch(ctx context.Context) error {
	if m.version == "" {
		before, text := m.exists, m.text
		c, err := m.list(ctx)
		if err != nil {
			return err
		}
		if m.exists != before || m.text != text || c.err != nil {
			m.report(c)
		}
	}
	err := m.watch(ctx)
	if ctx.Err() != nil || err == nil {
		return err
	}
	if statusCode(err) > 0 || errors.Is(err, errUnreadable) {
		m.version = "" // the start of the watch may be the cause; the list reports what is wrong
		return err
	}
	m.unreadable(ctx, err)
	return err
}

// unreadable reports that the object cannot be read.
func (m *configMap) unreadable(ctx context.Context, err error) {
	if ctx.Err() == nil {
		m.setReadError(ctx, requestError(err, m.cfg.ConfigMap))
	}
}

// readable reports that the object can be read.
func (m *configMap) readable(ctx context.Context) { m.setReadError(ctx, nil) }

// setReadError records why the main source cannot be read, nil if it can, and logs changes.
func (m *configMap) setReadError(ctx context.Context, wrong *hint.Error) {
	m.mu.Lock()
	before, logged := m.readError, m.logged
	news := wrong != nil && (before == nil || reasonOf(before) != reasonOf(wrong)) && m.logs.AllowN(m.cfg.Now(), 1)
	m.readError, m.logged = wrong, news || logged && wrong != nil
	m.mu.Unlock()
	switch {
	case wrong == nil && logged:
		m.cfg.Log.InfoContext(ctx, "configuration source recovered", "source", m.Name())
	case news:
		m.cfg.Log.ErrorContext(ctx, "configuration source unreadable", "source", m.Name(), "err", wrong.Err, "hint", wrong.Hint)
	}
}

// problem returns why the object cannot be read; nil: it can.
func (m *configMap) problem() *hint.Error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.readError
}

// request returns a request for the object.
func (m *configMap) request(opts metav1.ListOptions) (*watch.Request, error) {
	m.requests.Add(1)
	client, err := m.api.open()
	if err != nil {
		return nil, err
	}
	opts.FieldSelector = "metadata.name=" + m.cfg.ConfigMap.Name
	return client.Get().Namespace(m.cfg.ConfigMap.Namespace).Resource("configmaps").VersionedParams(&opts, metav1.ParameterCodec).MaxRetries(0), nil
}

// list reads the newest state of the object, and its resource version.
func (m *configMap) list(ctx context.Context) (content, error) {
	limited, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	var all corev1.ConfigMapList
	req, err := m.request(metav1.ListOptions{})
	if err == nil {
		err = req.Do(limited).Into(&all)
	}
	if err == nil && all.ResourceVersion == "" {
		err = fmt.Errorf("%w: list without a version", errUnreadable)
	}
	if err != nil {
		if limited.Err() != nil {
			err = errNoAnswer
			m.api.close()
		}
		m.unreadable(ctx, err)
		return content{}, requestError(err, m.cfg.ConfigMap)
	}
	m.readable(ctx)
	m.version = all.ResourceVersion
	i := slices.IndexFunc(all.Items, func(o corev1.ConfigMap) bool { return o.Name == m.cfg.ConfigMap.Name })
	if i < 0 {
		return m.missing(), nil
	}
	return m.content(&all.Items[i]), nil
}

// watch reads the changes since the version, until the server ends the watch.
func (m *configMap) watch(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	seconds := int64(watchMinSeconds + rand.IntN(watchJitterSeconds))
	late := time.AfterFunc(answerLimit, cancel)
	defer late.Stop()
	req, err := m.request(metav1.ListOptions{Watch: true, AllowWatchBookmarks: true, ResourceVersion: m.version, TimeoutSeconds: &seconds})
	if err != nil {
		return err
	}
	events, err := req.Watch(ctx)
	if err != nil {
		return m.timeoutError(ctx, err)
	}
	defer events.Stop()
	late.Reset(time.Duration(seconds)*time.Second + watchEndGrace)
	m.readable(ctx)
	for e := range events.ResultChan() {
		if err := m.apply(&e); err != nil {
			return m.timeoutError(ctx, err)
		}
	}
	return m.timeoutError(ctx, nil)
}

// timeoutError returns errNoAnswer if ctx has ended, because the server took too long or the agent stops. Otherwise it returns err.
func (m *configMap) timeoutError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		m.api.close()
		return errNoAnswer
	}
	return err
}

// apply applies one event of the watch, and reports the content if it changed or has an error.
func (m *configMap) apply(e *apiwatch.Event) error {
	if e.Type == apiwatch.Error {
		return watch.EventError(e.Object)
	}
	o, ok := e.Object.(*corev1.ConfigMap)
	if !ok || o.ResourceVersion == "" {
		return fmt.Errorf("%w: event without an object with a version", errUnreadable)
	}
	m.version = o.ResourceVersion
	there, text := m.exists, m.text
	var c content
	switch {
	case e.Type == apiwatch.Bookmark, o.Name != m.cfg.ConfigMap.Name:
		return nil
	case e.Type == apiwatch.Deleted:
		c = m.missing()
	default:
		c = m.content(o)
	}
	if c.err != nil || m.exists != there || m.text != text {
		m.report(c)
	}
	return nil
}

// missing returns the content for a missing object. It may be about to be created again.
func (m *configMap) missing() content {
	m.exists, m.text = false, ""
	return content{transient: true, err: &hint.Error{
		Err:  fmt.Errorf("ConfigMap %s does not exist", m.cfg.ConfigMap),
		Hint: "create it, with the configuration in the key " + Key,
	}}
}

// content returns the object's content. A missing or empty text is an error, not a configuration of defaults.
func (m *configMap) content(o *corev1.ConfigMap) content {
	text, ok := o.Data[Key]
	m.exists, m.text = true, text
	if len(text) > maxFile {
		m.text = "" // the content has an error, so it is reported in any case
		return m.invalid("the key "+Key+" is larger than 1 MiB", "no API server takes that; check what answers in its place")
	}
	switch _, binary := o.BinaryData[Key]; {
	case binary:
		return m.invalid("the key "+Key+" is not text", "create it from a UTF-8 text file")
	case !ok:
		keys := slices.Sorted(maps.Keys(o.Data))
		return m.invalid("no key "+Key, fmt.Sprintf("put the configuration there; the keys are [%s]", remote.Text(strings.Join(keys, ", "))))
	case strings.TrimSpace(text) == "":
		return m.invalid("the key "+Key+" is empty", "write `kind: Config` for the built-in defaults")
	}
	c, err := config.ParseAs(m.Name(), ".", []byte(text), m.cfg.Role)
	return content{config: c, err: err}
}

// invalid returns the content of an object without a configuration.
func (m *configMap) invalid(what, advice string) content {
	return content{err: &hint.Error{Err: fmt.Errorf("ConfigMap %s: %s", m.cfg.ConfigMap, what), Hint: advice}}
}
