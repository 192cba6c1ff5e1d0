# Sourced by scripts that type what the pages in doc have.
doc=$PWD/../doc

# block PAGE WORDS [LANGUAGE] prints the block of a page that has a line with these words. What it puts
# below /usr/local goes below /opt, which is the host's own.
block() {
	awk -v words="$2" -v fence="^\`\`\`${3:-sh}$" '$0 ~ fence { on = 1; text = ""; next } /^```$/ { if (on && index(text, words)) printf "%s", text; on = 0 } on { text = text $0 "\n" }' "$doc/$1" |
		sed -e 's/sudo //g' -e 's#/usr/local/#/opt/#g'
}
# typed PAGE WORDS runs such a block.
typed() {
	local text
	text=$(block "$1" "$2")
	test -n "$text" || { echo "$1: no block has $2"; return; }
	exec 3>&1
	trap 'failed=$BASH_COMMAND; { echo "$failed"; tail -n 3 /dev/shm/typed.log; } | say "'"$1"' failed" >&3' ERR
	eval "$text" >/dev/shm/typed.log 2>&1
	trap - ERR
	echo "$1: typed $2"
}
# page_line PAGE WORDS runs the first line with these words, whose IMAGE is $image.
page_line() {
	local line
	line=$(block "$1" "$2" | grep -m 1 -F -- "$2" | sed "s/IMAGE/${image:-}/")
	test -n "$line" || echo "$1: no line has $2"
	eval "$line"
}
