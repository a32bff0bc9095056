// SPDX-License-Identifier: Apache-2.0

package filewatch

import (
	"io/fs"
	"os"
	"time"
)

const (
	// SettleTime is the time without a change after which a file counts as written.
	SettleTime = 250 * time.Millisecond
	// MaxChanges is the number of checks, SettleTime apart, after which a changing file is read nevertheless.
	MaxChanges = 120
)

// Changes decides when the content of one file is read, and whether it is used. Most writers truncate a file first. So it does not
// use the content of a file that is still changing, for up to MaxChanges checks, nor an empty one at the first check that finds it.
type Changes struct {
	Unsettled bool // the file is still being written: check it again after SettleTime

	readInfo  fs.FileInfo // info of the file when its content was last used; nil: never
	lastInfo  fs.FileInfo // info of the file when it was last found changed; nil: never
	emptyOnce bool        // the last content was empty, after one that was not
	count     int         // consecutive checks that each found the file changed
}

// Due reports whether to read the file at path now: it has changed since its content was last used, or force is set.
func (c *Changes) Due(path string, force bool) (bool, error) {
	c.Unsettled = false
	info, err := os.Stat(path)
	if err != nil {
		return false, err
	}
	if !force && !c.emptyOnce && sameFile(info, c.readInfo) {
		return false, nil
	}
	if c.readInfo != nil && !sameFile(info, c.lastInfo) && !sameFile(info, c.readInfo) && c.count < MaxChanges {
		c.lastInfo, c.Unsettled = info, true
		c.count++
		return false, nil
	}
	c.lastInfo, c.count = info, 0
	return true, nil
}

// Use reports whether the content that was read after Due is used. empty says that there is none, replaces that there is one in use.
func (c *Changes) Use(empty, replaces bool) bool {
	if empty && replaces && !c.emptyOnce {
		c.emptyOnce = true
		return false
	}
	c.emptyOnce, c.readInfo = false, c.lastInfo
	return true
}

// ModTime returns when the file was written whose content is in use, the zero time for none.
func (c *Changes) ModTime() time.Time {
	if c.readInfo == nil {
		return time.Time{}
	}
	return c.readInfo.ModTime()
}

// sameFile reports whether a file that has info now seems unchanged since it had was. It is false if was is nil.
func sameFile(info, was fs.FileInfo) bool {
	return was != nil && os.SameFile(info, was) && info.ModTime().Equal(was.ModTime()) && info.Size() == was.Size()
}
