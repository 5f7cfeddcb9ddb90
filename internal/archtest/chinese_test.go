package archtest

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	// newParagraph finds lines that begin a block of their own, so that the line before them ends its
	// own block.
	newParagraph = regexp.MustCompile(`^\s*($|[*#|>!<]|-{3}|\d+\. |\[!|\[<)`)
	// whole finds a link with its text, its target, and what follows it.
	whole = regexp.MustCompile(`\[([^\[\]<]*)\]\(([^()\s]+?)(?:\s+"[^"]*")?\)(（英文）)?`)
)

// checkChinese checks the pages in Chinese. A browser shows the end of a line as a space, so a
// paragraph is broken only behind punctuation: in the middle of a word, the space would also hide
// the word from searches. A link that has a Chinese name and leads to an English page says so, and
// a link to a Chinese page has a Chinese name.
func checkChinese(t testing.TB, tree fs.FS) (problems []string) {
	t.Helper()
	for _, name := range find(t, tree, "*.md") {
		if !chinese(name) {
			continue
		}
		text := fenced.ReplaceAllStringFunc(read(t, tree, name), func(block string) string {
			return strings.Repeat("\n", strings.Count(block, "\n"))
		})
		lines := strings.Split(text, "\n")
		for i, line := range lines[:len(lines)-1] {
			if newParagraph.MatchString(lines[i+1]) || strings.TrimSpace(line) == "" || strings.ContainsAny(line[:1], "#|") || strings.HasPrefix(line, "[![") {
				continue
			}
			if end := strings.TrimRight(line, "*"); !strings.ContainsAny(end[max(0, len(end)-len("。")):], "，。；：、？！）”") {
				problems = append(problems, fmt.Sprintf("%s:%d: the line ends inside of a sentence: break it behind punctuation", name, i+1))
			}
		}
		for _, m := range whole.FindAllStringSubmatch(text, -1) {
			target, _, _ := strings.Cut(m[2], "#")
			if !strings.HasSuffix(target, ".md") || strings.Contains(target, "://") {
				continue
			}
			named := strings.ContainsFunc(m[1], func(r rune) bool { return unicode.Is(unicode.Han, r) })
			switch page := path.Join(path.Dir(name), target); {
			case chinese(page) && !named && m[1] != "":
				problems = append(problems, fmt.Sprintf("%s: the link [%s] leads to a Chinese page: give it a Chinese name", name, m[1]))
			case !chinese(page) && named && m[3] == "":
				problems = append(problems, fmt.Sprintf("%s: the link [%s] leads to an English page: write （英文） behind it", name, m[1]))
			}
		}
	}
	return problems
}

func chinese(name string) bool {
	return name == "README.zh-CN.md" || strings.HasPrefix(name, "docs/zh/")
}

func TestChineseRefused(t *testing.T) {
	t.Parallel()
	expect(t, checkChinese(t, treeOf(map[string]string{
		"README.zh-CN.md": "# 锁\n自动续期（看\n门狗）。**到期，**\n然后\n\n| 表 |\n|---|\n* 一，\n  二\n* 三\n```\n四\n五\n```\n" +
			"[术语](docs/zh/a.md#b)、[sql](docs/sql.md)、[事务](docs/sql.md)（英文）、[测试](a_test.go)\n",
		"docs/zh/a.md":  "[事务](../sql.md \"x\") [a](b.md) [readme](../../README.md)\n",
		"docs/other.md": "看\n门狗\n",
	})),
		"README.zh-CN.md:2: the line ends inside of a sentence",
		"docs/zh/a.md: the link [事务] leads to an English page",
		"docs/zh/a.md: the link [a] leads to a Chinese page",
	)
}
