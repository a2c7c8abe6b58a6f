/* The items of each task's mark scheme, above its comment. `rubric` contains lists [name, points] by grade id.
   The points of each item are lines of the comment, and their sum is the score. nbgrader's own code stores both. */
(() => {
    const LINE = /^- (\d+(?:\.\d+)?) of (\d+(?:\.\d+)?) points?: *(\S.*)$/;
    const forms = new Map();

    class Form {
        constructor(id, items) {
            this.comment = $(document.getElementById(`${id}-comment`));
            this.score = $(document.getElementById(id));
            this.items = items.map(([name, points]) => ({name, points, given: null}));
            const table = $('<table class="rubric">');
            for (const item of this.items) {
                item.box = $('<input type="checkbox">').attr('aria-label', item.name);
                item.number = $('<input type="number" min="0" step="any" class="tabbable">')
                    .attr({max: item.points, 'aria-label': `Points for: ${item.name}`});
                item.box.on('change', () => this.give(item, item.box.prop('checked') ? item.points : 0));
                item.number.on('change', () => this.give(item, item.number.val()));
                table.append($('<tr>').append(
                    $('<td>').append(item.box),
                    $('<td class="name">').append($('<label>').text(item.name).on('click', () => item.box.click())),
                    $('<td class="given">').append(item.number, document.createTextNode(` / ${item.points}`)),
                ));
            }
            table.find('input').prop('disabled', true);  // until nbgrader has fetched the comment
            this.comment.before(table);
            const panel = this.comment.closest('.nbgrader_cell');
            panel.find('.full-credit').on('click', () => this.all(item => item.points));
            panel.find('.no-credit').on('click', () => this.all(() => 0));
        }

        /* Takes the points from the comment. Returns whether it contains every item. */
        read() {
            const found = new Map();
            for (const line of this.comment.val().split('\n')) {
                const match = LINE.exec(line.trimEnd());
                if (match) found.set(match[3], Number(match[1]));
            }
            for (const item of this.items)
                item.given = found.has(item.name) ? Math.min(found.get(item.name), item.points) : null;
            this.show();
            return this.items.every(item => item.given !== null);
        }

        points() {
            return this.items.map(item => item.given).join();
        }

        show() {
            for (const item of this.items) {
                item.box.add(item.number).prop('disabled', false);
                item.number.val(item.given === null ? '' : item.given);
                item.box.prop({checked: item.given === item.points, indeterminate: item.given > 0 && item.given < item.points});
            }
        }

        give(item, points) {
            item.given = Math.min(Math.max(Number(points) || 0, 0), item.points);
            this.write();
            this.add_up();
        }

        all(points) {
            for (const item of this.items) item.given = points(item);
            this.write();
        }

        /* Puts the points into the comment. Items that the person has not touched get 0. */
        write() {
            const names = new Set(this.items.map(item => item.name));
            for (const item of this.items) item.given ??= 0;
            const lines = this.items.map(({name, points, given}) =>
                `- ${given} of ${points} ${points === 1 ? 'point' : 'points'}: ${name}`);
            const rest = this.comment.val().split('\n').filter(line => !names.has(LINE.exec(line.trimEnd())?.[3]));
            while (rest.length && !rest[0].trim()) rest.shift();
            this.comment.val([...lines, ...(rest.length ? ['', ...rest] : [])].join('\n')).trigger('change');
            autosize.update(this.comment);
            this.show();
        }

        add_up() {
            const sum = this.items.reduce((sum, item) => sum + item.given, 0);
            this.score.val(Number(sum.toFixed(6))).trigger('change');
        }
    }

    for (const [id, items] of Object.entries(rubric)) forms.set(`${id}-comment`, new Form(id, items));

    const form = view => forms.get(view.$comment.attr('id'));
    const {render, save} = CommentUI.prototype;
    CommentUI.prototype.render = function () {
        render.call(this);
        form(this)?.read();
    };
    CommentUI.prototype.save = function () {
        const mine = form(this), before = mine?.points();
        save.call(this);
        if (mine?.read() && mine.points() !== before) mine.add_up();  // the person has typed points
    };
})();
